//! The examples run: each ends with an error where its network has not learned.

#[path = "../../examples/cnn.rs"]
mod cnn;
#[path = "../../examples/models/custom_kernel.rs"]
mod custom_kernel;
#[path = "../../examples/models/data_parallel.rs"]
mod data_parallel;
#[path = "../../examples/models/gan.rs"]
mod gan;
#[path = "../../examples/models/gpt.rs"]
mod gpt;
#[path = "../../examples/models/inference.rs"]
mod inference;
#[path = "../../examples/models/lstm.rs"]
mod lstm;
#[path = "../../examples/mlp.rs"]
mod mlp;
#[path = "../../examples/mnist_conv.rs"]
mod mnist_conv;
#[path = "../../examples/mnist_mlp.rs"]
mod mnist_mlp;
#[path = "../../examples/resnet.rs"]
mod resnet;
#[path = "../../examples/models/unet.rs"]
mod unet;
#[path = "../../examples/models/vae.rs"]
mod vae;

#[test]
fn mlp_learns() {
    mlp::main().unwrap();
}

/// candle's and burn's examples.
#[test]
fn the_examples_of_others_learn() {
    assert!(mnist_mlp::train().unwrap() > 0.9);
    assert!(mnist_conv::train().unwrap() > 0.9);
}

#[test]
fn cnn_learns() {
    cnn::main().unwrap();
}

#[test]
fn resnet_learns() {
    resnet::main().unwrap();
}

/// Programs of `examples/models`: one test each, so that they run side by side.
macro_rules! models {
    ($($test:ident: $model:ident;)*) => {
        $(
            #[test]
            fn $test() {
                $model::run(&netcl::core::device::manager().cpu().queue).unwrap();
            }
        )*
    };
}

models! {
    a_custom_kernel_computes_and_learns: custom_kernel;
    several_devices_take_the_steps_of_one: data_parallel;
    a_gan_with_gradient_penalty_learns: gan;
    a_gpt_learns_to_write: gpt;
    weights_from_a_safetensors_file_answer: inference;
    an_lstm_learns: lstm;
    a_unet_learns: unet;
    a_variational_autoencoder_learns: vae;
}
