// bfloat16 is the upper half of a float, stored as ushort and computed with as float.
float from_bfloat16(ushort bits) { return as_float((uint)bits << 16); }
// Rounds to nearest even; a NaN stays a (quiet) NaN.
ushort to_bfloat16(float value) {
    uint bits = as_uint(value);
    return isnan(value) ? (ushort)((bits >> 16) | 0x40) : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#define LOAD(pointer, index) from_bfloat16((pointer)[index])
#define STORE(pointer, index, value) ((pointer)[index] = to_bfloat16((float)(value)))
