# The layers, bottom up, and the library that they form together: libmoonbright.a and libmoonbright.so.
set(MB_LIBRARY_SOURCES "")
set(MB_LAYERS "")

mb_embed_fatbin(mb_fatbin_source)
mb_embed_amdgpu(mb_amdgpu_source)

foreach(layer
        "base:src/base" "kernels:kernels" "hw:src/hw" "sim:src/hw/sim" "nvrm:src/hw/nvrm"
        "cuda:src/hw/cuda" "hip:src/hw/hip" "probe:src/probe" "vm:src/vm" "runtime:src/runtime" "api:src/api")
    string(REPLACE ":" ";" layer "${layer}")
    list(GET layer 0 name)
    list(GET layer 1 dir)
    mb_glob(sources ${dir}/*.c)
    if(NOT dir MATCHES "^(src/hw|kernels)$") # whose subdirectories are layers, or not C
        mb_glob(deeper ${dir}/*/*.c)
        list(APPEND sources ${deeper})
    endif()
    if(name STREQUAL "cuda")
        list(APPEND sources ${mb_fatbin_source})
    elseif(name STREQUAL "hip")
        list(APPEND sources ${mb_amdgpu_source})
    endif()
    mb_add_layer(${name} ${sources})
endforeach()

set(mb_objects "")
foreach(layer IN LISTS MB_LAYERS)
    list(APPEND mb_objects $<TARGET_OBJECTS:${layer}>)
endforeach()

function(mb_finish_library target)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME moonbright LINKER_LANGUAGE C)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)
endfunction()

add_library(moonbright_static STATIC ${mb_objects})
mb_finish_library(moonbright_static)

set(mb_map ${PROJECT_SOURCE_DIR}/src/moonbright.map)
add_library(moonbright_shared SHARED ${mb_objects})
mb_finish_library(moonbright_shared)
set_target_properties(moonbright_shared PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${mb_map})
target_link_options(moonbright_shared PRIVATE -Wl,--version-script=${mb_map} -Wl,--as-needed)

# mb_add_library_variant(<name> <definition>...): a static copy of the whole library for tests, with assertions on,
# and with the definitions also seen by whoever links it.
function(mb_add_library_variant name)
    add_library(${name} STATIC ${MB_LIBRARY_SOURCES})
    target_compile_definitions(${name} PUBLIC ${ARGN})
    target_compile_options(${name} PRIVATE -UNDEBUG)
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
                                              ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE mb_flags PUBLIC Threads::Threads ${CMAKE_DL_LIBS} m)
endfunction()
