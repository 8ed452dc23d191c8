/* The C interface of netcl: run models from .netcl and ONNX files on any OpenCL device or the native CPU.
 *
 * - Functions return a netcl_status; netcl_last_error() says what went wrong. On failure results are left as they were.
 * - Handles belong to the caller, who gives each back with the _free function of its kind; NULL may be freed.
 * - All functions may be called from any thread. Threads may share a handle, as long as none frees it meanwhile.
 * - Texts are UTF-8 and end with a zero byte.
 */
#ifndef NETCL_H
#define NETCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t netcl_status;
typedef int32_t netcl_dtype;

/* What a function returns. */
enum {
    NETCL_OK = 0,
    NETCL_VALUE = 1,       /* a value that cannot be used */
    NETCL_TYPE = 2,        /* a value of the wrong type */
    NETCL_INDEX = 3,       /* an index outside of its range */
    NETCL_MEMORY = 4,      /* out of memory, on the host or a device */
    NETCL_NOT_FOUND = 5,   /* a missing file */
    NETCL_IO = 6,          /* any other failure of the operating system */
    NETCL_BUILD = 7,       /* a kernel that does not compile */
    NETCL_INTERRUPTED = 8, /* ended by the user */
    NETCL_RUNTIME = 9,     /* a failure of a driver */
    NETCL_INTERNAL = 10    /* a mistake in netcl itself */
};

/* Element types. */
enum {
    NETCL_FLOAT32 = 0,
    NETCL_FLOAT64 = 1,
    NETCL_FLOAT16 = 2,
    NETCL_BFLOAT16 = 3,
    NETCL_INT32 = 4,
    NETCL_INT64 = 5,
    NETCL_BOOL = 6 /* one byte, 0 or 1 */
};

typedef struct netcl_device netcl_device;
typedef struct netcl_tensor netcl_tensor;
typedef struct netcl_model netcl_model;

/* The version of the library. */
const char *netcl_version(void);

/* What the last function of this thread that failed had to say; valid until the next one fails. */
const char *netcl_last_error(void);

/* ---- devices --------------------------------------------------------------------------------------------------------- */

/* How many devices there are: those of all OpenCL platforms, and the native CPU last. */
netcl_status netcl_device_count(size_t *count);

/* Opens a device by its place in the list. */
netcl_status netcl_device_at(size_t index, netcl_device **device);

/* Opens a device by a selector: "auto" (a GPU or accelerator, else the native CPU), "gpu", "cpu", a number. */
netcl_status netcl_device_open(const char *selector, netcl_device **device);

/* The name of a device; it lives as long as the handle. */
const char *netcl_device_name(const netcl_device *device);

void netcl_device_free(netcl_device *device);

/* ---- tensors --------------------------------------------------------------------------------------------------------- */

/* Copies dense data of the host, in row-major order, to a device; makes zeros where data is NULL. */
netcl_status netcl_tensor_new(const netcl_device *device, netcl_dtype dtype, const size_t *shape, size_t ndim, const void *data, size_t nbytes, netcl_tensor **tensor);

netcl_status netcl_tensor_dtype(const netcl_tensor *tensor, netcl_dtype *dtype);

netcl_status netcl_tensor_ndim(const netcl_tensor *tensor, size_t *ndim);

/* Writes the lengths of the axes to an array with room for capacity of them. */
netcl_status netcl_tensor_shape(const netcl_tensor *tensor, size_t *shape, size_t capacity);

/* The number of bytes of all elements: what netcl_tensor_read copies. */
netcl_status netcl_tensor_nbytes(const netcl_tensor *tensor, size_t *nbytes);

/* Copies all elements to the host, in row-major order, and waits until they are there. */
netcl_status netcl_tensor_read(const netcl_tensor *tensor, void *data, size_t nbytes);

void netcl_tensor_free(netcl_tensor *tensor);

/* ---- models ---------------------------------------------------------------------------------------------------------- */

/* Loads an .onnx file, or a .netcl file that holds the network's configuration. */
netcl_status netcl_model_load(const char *path, const netcl_device *device, netcl_model **model);

netcl_status netcl_model_input_count(const netcl_model *model, size_t *count);

netcl_status netcl_model_output_count(const netcl_model *model, size_t *count);

/* The name of an input or output, NULL where there is none; it lives as long as the handle. */
const char *netcl_model_input_name(const netcl_model *model, size_t index);

const char *netcl_model_output_name(const netcl_model *model, size_t index);

/* Runs a model on inputs of its device. Without names (NULL), inputs and outputs are in the model's order. With output names, only
 * these are given back. Each output is a new handle. */
netcl_status netcl_model_run(const netcl_model *model, const char *const *input_names, const netcl_tensor *const *inputs, size_t input_count, const char *const *output_names, netcl_tensor **outputs, size_t output_count);

void netcl_model_free(netcl_model *model);

#ifdef __cplusplus
}
#endif

#endif
