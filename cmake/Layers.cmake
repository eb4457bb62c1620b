# mb_add_layer(<name> <source>...): static library mb_<name> from one layer of the tree. A layer without sources
# makes no target. Appends the sources to MB_LIBRARY_SOURCES and the target to MB_LAYERS.
#
# Include paths: include/ for users; src/ and the root (for kernels/) for the library itself.
function(mb_internal_includes target)
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include
                                         PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
endfunction()

function(mb_add_layer name)
    if(NOT ARGN)
        return()
    endif()
    add_library(mb_${name} STATIC ${ARGN})
    mb_internal_includes(mb_${name})
    target_link_libraries(mb_${name} PRIVATE mb_flags)
    set(MB_LIBRARY_SOURCES ${MB_LIBRARY_SOURCES} ${ARGN} PARENT_SCOPE)
    set(MB_LAYERS ${MB_LAYERS} mb_${name} PARENT_SCOPE)
endfunction()

# mb_glob(<out> <pattern relative to the root>...): sorted; a new file makes the next build configure again.
function(mb_glob out)
    list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/)
    file(GLOB files CONFIGURE_DEPENDS ${ARGN})
    set(${out} ${files} PARENT_SCOPE)
endfunction()
