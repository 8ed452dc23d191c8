// Macros for kernel bodies on scalars. A caller that defines LOAD and STORE first (for 16-bit storage, say) keeps its own.
#ifndef LOAD
#define LOAD(pointer, index) ((pointer)[index])
#endif
#ifndef STORE
#define STORE(pointer, index, value) ((pointer)[index] = (value))
#endif
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
// Written so that a NaN stays a NaN.
#define RELU(x) ((x) < 0 ? 0 : (x))
