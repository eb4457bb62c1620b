# Target mb_flags carries the warnings and instrumentation that every C file of the project is compiled with.
add_library(mb_flags INTERFACE)

set(mb_warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wvla -Wstrict-prototypes
                -Wmissing-prototypes)
if(MB_WERROR)
    # -Wtsan tells that TSan does not model stand-alone fences. That is worth seeing, but the fence may be right.
    list(APPEND mb_warnings -Werror)
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        list(APPEND mb_warnings -Wno-error=tsan)
    endif()
endif()
target_compile_options(mb_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${mb_warnings}>")

if(NOT MB_SANITIZE MATCHES "^(|thread|address|undefined|address,undefined)$")
    message(FATAL_ERROR "MB_SANITIZE=${MB_SANITIZE}: allowed are address, undefined, "
                        "address,undefined and thread")
endif()
if(MB_FUZZ AND NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MB_FUZZ needs clang: configure a new directory with -DCMAKE_C_COMPILER=clang")
endif()

if(MB_SANITIZE)
    add_compile_options(-fsanitize=${MB_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${MB_SANITIZE})
endif()
if(MB_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(MB_ANALYZER)
    if(NOT CMAKE_C_COMPILER_ID STREQUAL "GNU")
        message(FATAL_ERROR "MB_ANALYZER needs gcc")
    endif()
    target_compile_options(mb_flags INTERFACE -fanalyzer)
    target_compile_definitions(mb_flags INTERFACE MB_ANALYZER=1)
endif()

mb_summary("compiler" "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}")
if(MB_SANITIZE)
    mb_summary("sanitizers" "${MB_SANITIZE}")
endif()
