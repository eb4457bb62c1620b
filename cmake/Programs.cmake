# The command, the examples and the benches.

# cli/main.c becomes the program; the rest, at most one directory deep, is a library that tests and fuzzers can
# link too. The program links the shared library, so it cannot reach a symbol that is not public.
mb_glob(mb_cli_sources cli/*.c cli/*/*.c)
mb_glob(mb_cli_main cli/main.c)
if(mb_cli_main)
    list(REMOVE_ITEM mb_cli_sources ${mb_cli_main})
endif()
if(mb_cli_sources)
    add_library(mb_cli STATIC ${mb_cli_sources})
    target_include_directories(mb_cli PUBLIC ${PROJECT_SOURCE_DIR}/include
                                      PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/cli)
    target_link_libraries(mb_cli PRIVATE mb_flags PUBLIC ZLIB::ZLIB Threads::Threads m)
endif()
if(mb_cli_main)
    add_executable(moonbright ${mb_cli_main})
    target_include_directories(moonbright PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/cli)
    target_link_libraries(moonbright PRIVATE mb_flags $<TARGET_NAME_IF_EXISTS:mb_cli> moonbright_shared)
    set_target_properties(moonbright PROPERTIES
        INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
else()
    mb_summary("command" "not built: cli/main.c is missing")
endif()

# examples/<name>.c and examples/c/<name>.c: a user's program, so public header and shared library only.
mb_glob(mb_examples examples/*.c examples/c/*.c)
foreach(file IN LISTS mb_examples)
    get_filename_component(name ${file} NAME_WE)
    add_executable(example_${name} ${file})
    target_link_libraries(example_${name} PRIVATE mb_flags moonbright_shared Threads::Threads m)
endforeach()

# bench/bench_<name>.c may measure inside the library. Other .c files there are shared by all of them.
mb_glob(mb_bench_sources bench/bench_*.c)
mb_glob(mb_bench_common bench/*.c)
if(mb_bench_sources)
    list(REMOVE_ITEM mb_bench_common ${mb_bench_sources})
endif()
foreach(file IN LISTS mb_bench_sources)
    get_filename_component(name ${file} NAME_WE)
    add_executable(${name} ${file} ${mb_bench_common})
    mb_internal_includes(${name})
    target_link_libraries(${name} PRIVATE mb_flags $<TARGET_NAME_IF_EXISTS:mb_cli> moonbright_static
                                          Threads::Threads m)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endforeach()
