# cmake -DINPUTS=<file,...> -DNAMES=<target,...> -DOUTPUT=<file.c> -P EmbedAmdgpuBytes.cmake: writes the list
# mb__hip_code[], which ends with an entry without a name.
string(REPLACE "," ";" inputs "${INPUTS}")
string(REPLACE "," ";" names "${NAMES}")
set(text "/* Generated from the compiled AMD kernels. */\n#include \"hw/hip/hip.h\"\n\n")
set(rows "")
foreach(input name IN ZIP_LISTS inputs names)
    file(SIZE ${input} size)
    file(READ ${input} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(APPEND text "_Alignas(4096) static const unsigned char code_${name}[] = {${bytes}};\n")
    string(APPEND rows "    {\"${name}\", code_${name}, ${size}},\n")
endforeach()
file(WRITE ${OUTPUT} "${text}\nconst struct mb_hip_code mb__hip_code[] = {\n${rows}    {NULL, NULL, 0},\n};\n")
