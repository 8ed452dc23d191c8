// Several threads run one model at the same time; handles free themselves, errors are exceptions.
//
//     c++ -std=c++17 threads.cpp -I crates/netcl-c/include -L target/release -lnetcl_c -pthread -o threads
//     LD_LIBRARY_PATH=target/release ./threads model.onnx cpu 2 3
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "netcl.h"

template <class T, void (*Free)(T *)> struct Deleter {
    void operator()(T *handle) const { Free(handle); }
};
template <class T, void (*Free)(T *)> using Handle = std::unique_ptr<T, Deleter<T, Free>>;
using Device = Handle<netcl_device, netcl_device_free>;
using Tensor = Handle<netcl_tensor, netcl_tensor_free>;
using Model = Handle<netcl_model, netcl_model_free>;

static void check(netcl_status status) {
    if (status != NETCL_OK) throw std::runtime_error(netcl_last_error());
}

static Model load(const std::string &path, const Device &device) {
    netcl_model *model;
    check(netcl_model_load(path.c_str(), device.get(), &model));
    return Model(model);
}

static std::vector<float> run(const Model &model, const Device &device, const std::vector<size_t> &shape) {
    size_t count = 1;
    for (size_t length : shape) count *= length;
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = static_cast<float>(i) / static_cast<float>(count);

    netcl_tensor *handle;
    check(netcl_tensor_new(device.get(), NETCL_FLOAT32, shape.data(), shape.size(), values.data(),
                           count * sizeof(float), &handle));
    Tensor input(handle);
    const char *names[] = {netcl_model_input_name(model.get(), 0)};
    const netcl_tensor *inputs[] = {input.get()};
    const char *wanted[] = {netcl_model_output_name(model.get(), 0)};
    check(netcl_model_run(model.get(), names, inputs, 1, wanted, &handle, 1));
    Tensor output(handle);

    size_t nbytes;
    check(netcl_tensor_nbytes(output.get(), &nbytes));
    std::vector<float> results(nbytes / sizeof(float));
    check(netcl_tensor_read(output.get(), results.data(), nbytes));
    return results;
}

int main(int argc, char **argv) try {
    if (argc < 4) throw std::runtime_error("usage: threads MODEL DEVICE LENGTH...");
    netcl_device *handle;
    check(netcl_device_open(argv[2], &handle));
    Device device(handle);
    Model model = load(argv[1], device);
    std::vector<size_t> shape;
    for (int i = 3; i < argc; i++) shape.push_back(std::stoull(argv[i]));

    std::vector<std::vector<float>> results(4);
    std::vector<std::exception_ptr> failures(4);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < results.size(); i++) {
        threads.emplace_back([&, i] {
            try {
                for (int again = 0; again < 10; again++) results[i] = run(model, device, shape);
            } catch (...) {
                failures[i] = std::current_exception();
            }
        });
    }
    for (auto &thread : threads) thread.join();
    for (auto &failure : failures)
        if (failure) std::rethrow_exception(failure);
    for (auto &result : results)
        if (result != results[0]) throw std::runtime_error("the threads have different results");
    for (float value : results[0]) std::printf("%.6f\n", value);

    try {
        load("nowhere.onnx", device);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "as expected: %s\n", error.what());
    }
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
