# mb_summary(<topic> <text>): one line of the summary that ends every configuration. The summary is also kept in
# <build>/summary.txt, which `make build` prints, so that a missing optional tool is seen on every build.
function(mb_summary topic text)
    string(REPLACE ";" "," text "${text}") # the property is a list
    set_property(GLOBAL APPEND PROPERTY mb_summary_lines "${topic}|${text}")
endfunction()

# mb_summarize_tools(<tool> <what it is for>...): tells which optional tools of `make check` are missing.
function(mb_summarize_tools)
    while(ARGN)
        list(POP_FRONT ARGN tool purpose)
        find_program(MB_TOOL_${tool} ${tool} NO_CACHE)
        if(NOT MB_TOOL_${tool})
            mb_summary("${tool}" "MISSING: make check will skip ${purpose}")
        endif()
    endwhile()
endfunction()

function(mb_print_summary)
    get_property(lines GLOBAL PROPERTY mb_summary_lines)
    set(out "MoonBright ${PROJECT_VERSION}\n")
    foreach(line IN LISTS lines)
        string(REGEX MATCH "^([^|]*)\\|(.*)$" _ "${line}")
        set(topic "${CMAKE_MATCH_1}                ")
        set(text "${CMAKE_MATCH_2}")
        string(SUBSTRING "${topic}" 0 16 topic)
        string(APPEND out "  ${topic}${text}\n")
    endforeach()
    file(WRITE ${CMAKE_BINARY_DIR}/summary.txt "${out}")
    message("${out}")
endfunction()
