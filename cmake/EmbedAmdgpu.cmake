# mb_embed_amdgpu(<out>): sets <out> to a C file that defines mb__hip_code[] (src/hw/hip/hip.h) from
# kernels/hip/work.cl: one code object for each AMD GPU that some clang here can compile for. Nothing of ROCm is
# needed: clang with the amdgcn target and lld do it, the system's or ROCm's own. What could not be built is told in the
# summary, and at run time by the backend, never hidden.
set(MB_AMDGPU_TARGETS gfx90a gfx942)
set(MB_AMDGPU_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/EmbedAmdgpuBytes.cmake)

# Sets <out> to the first clang that compiles and links for <target>, or to an empty string. Newer ones know more GPUs.
function(mb_find_amdgpu_clang target out)
    set(probe ${CMAKE_BINARY_DIR}/amdgpu/probe.cl)
    file(WRITE ${probe} "__kernel void probe(__global ulong *p)\n{\n    *p = 1;\n}\n")
    foreach(name clang-14 clang clang-22 clang-21 clang-20 clang-19 clang-18 clang-17 clang-16 clang-15)
        find_program(MB_AMDGPU_${name} ${name} HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES llvm/bin)
        mark_as_advanced(MB_AMDGPU_${name})
        if(NOT MB_AMDGPU_${name})
            continue()
        endif()
        execute_process(
            COMMAND ${MB_AMDGPU_${name}} -x cl -cl-std=CL2.0 -target amdgcn-amd-amdhsa -mcpu=${target} -nogpulib
                    -O2 ${probe} -o ${probe}.${target}
            RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
        if(NOT failed)
            set(${out} ${MB_AMDGPU_${name}} PARENT_SCOPE)
            return()
        endif()
    endforeach()
    set(${out} "" PARENT_SCOPE)
endfunction()

function(mb_embed_amdgpu out)
    set(dir ${CMAKE_BINARY_DIR}/amdgpu)
    set(source ${dir}/code.c)
    set(kernels ${PROJECT_SOURCE_DIR}/kernels/hip/work.cl)
    set(${out} ${source} PARENT_SCOPE)
    file(MAKE_DIRECTORY ${dir})

    set(objects "")
    set(names "")
    set(built "")
    set(absent "")
    foreach(target IN LISTS MB_AMDGPU_TARGETS)
        if(NOT DEFINED CACHE{MB_AMDGPU_CLANG_${target}})
            mb_find_amdgpu_clang(${target} found)
            set(MB_AMDGPU_CLANG_${target} "${found}" CACHE STRING "clang for ${target}; empty: none")
            mark_as_advanced(MB_AMDGPU_CLANG_${target})
        endif()
        set(clang "${MB_AMDGPU_CLANG_${target}}")
        if(NOT clang)
            list(APPEND absent ${target})
            continue()
        endif()
        set(object ${dir}/${target}.co)
        add_custom_command(OUTPUT ${object}
            COMMAND ${clang} -x cl -cl-std=CL2.0 -target amdgcn-amd-amdhsa -mcpu=${target} -nogpulib -O2
                    -Wall -Wextra -DMB_CL_NO_LIBRARY -I${PROJECT_SOURCE_DIR} -MD -MF ${object}.d -MT ${object}
                    ${kernels} -o ${object}
            DEPENDS ${kernels} DEPFILE ${object}.d COMMENT "clang: AMD kernels, ${target}" VERBATIM)
        list(APPEND objects ${object})
        list(APPEND names ${target})
        list(APPEND built "${target} by ${clang}")
    endforeach()
    list(JOIN objects "," object_list)
    list(JOIN names "," name_list)
    add_custom_command(OUTPUT ${source}
        COMMAND ${CMAKE_COMMAND} -DINPUTS=${object_list} -DNAMES=${name_list} -DOUTPUT=${source} -P ${MB_AMDGPU_SCRIPT}
        DEPENDS ${objects} ${MB_AMDGPU_SCRIPT} VERBATIM)

    list(JOIN built ", " built)
    list(JOIN absent ", " absent)
    set(text "${built}")
    if(absent)
        set(text "${text}; NOT BUILT: ${absent}, no clang here compiles and links for it")
    endif()
    string(REGEX REPLACE "^; " "" text "${text}")
    mb_summary("AMD kernels" "${text}")
endfunction()
