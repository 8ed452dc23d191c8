/* Runs a model on a ramp of numbers and prints what comes out.
 *
 *     cc run.c -I crates/netcl-c/include -L target/release -lnetcl_c -o run
 *     LD_LIBRARY_PATH=target/release ./run model.onnx cpu 2 3     (a model of one input of shape 2 x 3)
 */
#include <stdio.h>
#include <stdlib.h>

#include "netcl.h"

static void check(netcl_status status) {
    if (status != NETCL_OK) {
        fprintf(stderr, "error %d: %s\n", (int)status, netcl_last_error());
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s MODEL DEVICE LENGTH...\n", argv[0]);
        return 2;
    }
    netcl_device *device;
    check(netcl_device_open(argv[2], &device));
    fprintf(stderr, "netcl %s on %s\n", netcl_version(), netcl_device_name(device));

    netcl_model *model;
    check(netcl_model_load(argv[1], device, &model));

    size_t ndim = (size_t)(argc - 3), count = 1;
    size_t *shape = malloc(ndim * sizeof *shape);
    for (size_t i = 0; i < ndim; i++) {
        shape[i] = (size_t)strtoull(argv[3 + i], NULL, 10);
        count *= shape[i];
    }
    float *values = malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)i / (float)count;
    }
    netcl_tensor *input;
    check(netcl_tensor_new(device, NETCL_FLOAT32, shape, ndim, values, count * sizeof *values, &input));

    const netcl_tensor *inputs[] = {input};
    netcl_tensor *output;
    check(netcl_model_run(model, NULL, inputs, 1, NULL, &output, 1));

    size_t nbytes;
    check(netcl_tensor_nbytes(output, &nbytes));
    float *results = malloc(nbytes);
    check(netcl_tensor_read(output, results, nbytes));
    for (size_t i = 0; i < nbytes / sizeof *results; i++) {
        printf("%.6f\n", results[i]);
    }

    free(results);
    free(values);
    free(shape);
    netcl_tensor_free(output);
    netcl_tensor_free(input);
    netcl_model_free(model);
    netcl_device_free(device);
    return 0;
}
