# mb_embed_fatbin(<out>): sets <out> to a C file that defines
#     const unsigned char mb__cuda_fatbin[];     16-byte aligned
#     const size_t        mb__cuda_fatbin_size;  bytes, 0 when no device code was built
# from kernels/cuda/*.cu: machine code for sm_80 and sm_90, and PTX of compute_90 for later devices. All .cu files
# are compiled as one translation unit, so that the library carries one module; file-local names must differ.
# The bytes 0 case is told in the summary and at run time by the backend, never hidden.
set(MB_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/EmbedBytes.cmake)

function(mb_embed_fatbin out)
    find_program(MB_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
    set(dir ${CMAKE_BINARY_DIR}/fatbin)
    set(source ${dir}/fatbin.c)
    set(${out} ${source} PARENT_SCOPE)
    file(MAKE_DIRECTORY ${dir})

    if(NOT MB_NVCC OR NOT kernels)
        if(MB_NVCC)
            mb_summary("CUDA kernels" "not built: kernels/cuda holds no .cu file (nvcc: ${MB_NVCC})")
        else()
            mb_summary("CUDA kernels" "NOT BUILT: nvcc was not found, set CUDA_HOME or PATH")
        endif()
        add_custom_command(OUTPUT ${source}
            COMMAND ${CMAKE_COMMAND} -DINPUT= -DOUTPUT=${source} -P ${MB_EMBED_SCRIPT}
            DEPENDS ${MB_EMBED_SCRIPT} VERBATIM)
        return()
    endif()

    set(unit "")
    foreach(file IN LISTS kernels)
        string(APPEND unit "#include \"${file}\"\n")
    endforeach()
    file(CONFIGURE OUTPUT ${dir}/kernels.cu CONTENT "${unit}" @ONLY)
    set(fatbin ${dir}/kernels.fatbin)
    add_custom_command(OUTPUT ${fatbin}
        COMMAND ${MB_NVCC} -fatbin -O3 -lineinfo -std=c++17
                -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
                -I${PROJECT_SOURCE_DIR} -MD -MF ${fatbin}.d -MT ${fatbin} -o ${fatbin} ${dir}/kernels.cu
        DEPENDS ${dir}/kernels.cu ${kernels} DEPFILE ${fatbin}.d
        COMMENT "nvcc: CUDA kernels" VERBATIM)
    add_custom_command(OUTPUT ${source}
        COMMAND ${CMAKE_COMMAND} -DINPUT=${fatbin} -DOUTPUT=${source} -P ${MB_EMBED_SCRIPT}
        DEPENDS ${fatbin} ${MB_EMBED_SCRIPT} VERBATIM)
    list(LENGTH kernels count)
    mb_summary("CUDA kernels" "${count} file(s), sm_80 + sm_90 + PTX, by ${MB_NVCC}")
endfunction()
