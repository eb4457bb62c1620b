# cmake -DINPUT=<file or empty> -DOUTPUT=<file.c> -P EmbedBytes.cmake: writes the bytes of INPUT as a C array.
set(bytes "0")
set(size 0)
if(INPUT)
    file(SIZE ${INPUT} size)
    file(READ ${INPUT} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
endif()
file(WRITE ${OUTPUT}
    "/* Generated from the compiled CUDA kernels. */\n"
    "#include <stddef.h>\n\n"
    "extern const unsigned char mb__cuda_fatbin[];\n"
    "extern const size_t mb__cuda_fatbin_size;\n\n"
    "_Alignas(16) const unsigned char mb__cuda_fatbin[] = {${bytes}};\n"
    "const size_t mb__cuda_fatbin_size = ${size};\n")
