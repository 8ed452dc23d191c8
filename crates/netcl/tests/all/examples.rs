//! The examples run: each ends with an error where its network has not learned.

#[path = "../../examples/cnn.rs"]
mod cnn;
#[path = "../../examples/mlp.rs"]
mod mlp;
#[path = "../../examples/resnet.rs"]
mod resnet;

#[test]
fn mlp_learns() {
    mlp::main().unwrap();
}

#[test]
fn cnn_learns() {
    cnn::main().unwrap();
}

#[test]
fn resnet_learns() {
    resnet::main().unwrap();
}
