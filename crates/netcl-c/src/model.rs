//! Models from files.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;

use netcl::autograd::no_grad;
use netcl::core::backend::Queue;
use netcl::nn::Module;
use netcl::onnx::{OnnxModule, Port, Value};

use crate::Status;
use crate::boundary::{Failure, Result, elements, free, guarded, handle, put, reference, text};
use crate::device::Device;
use crate::tensor::Tensor;

/// A model on a device.
pub struct Model {
    network: Network,
    queue: Queue,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

enum Network {
    Onnx(OnnxModule),
    /// Of a `.netcl` file: one input, one output.
    Netcl(Box<dyn Module>),
}

impl Model {
    fn load(path: &Path, queue: &Queue) -> Result<Model> {
        let names = |ports: &[Port]| {
            ports.iter().map(|port| CString::new(port.name.replace('\0', " ")).unwrap_or_default()).collect()
        };
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx")) {
            let network = netcl::onnx::load(path, queue)?;
            let (inputs, outputs) = (names(network.inputs()), names(network.outputs()));
            return Ok(Model { network: Network::Onnx(network), queue: queue.clone(), inputs, outputs });
        }
        let mut network = netcl::io::load_model(path, queue)?;
        network.eval();
        let (inputs, outputs) = (vec![c"input".to_owned()], vec![c"output".to_owned()]);
        Ok(Model { network: Network::Netcl(network), queue: queue.clone(), inputs, outputs })
    }

    /// The results at the given places; those that nobody asked for may be of any kind.
    fn run(&self, inputs: Vec<netcl::Tensor>, places: &[usize]) -> Result<Vec<netcl::Tensor>> {
        let _scope = no_grad();
        let results = match &self.network {
            Network::Netcl(network) => vec![network.forward(&inputs[0])?.into()],
            Network::Onnx(network) => network.run(inputs.into_iter().map(Value::from).collect())?,
        };
        let picked = |&at: &usize| match results.get(at) {
            Some(value) => Ok(value.to_tensor(&self.queue)?),
            None => Err(Failure::value("the model gave fewer results than it says")),
        };
        places.iter().map(picked).collect()
    }
}

/// The places of values in a call: given by name, or in order where there are no names.
///
/// # Safety
/// `names` is NULL or has `count` texts.
unsafe fn places(names: *const *const c_char, count: usize, known: &[CString], what: &str) -> Result<Vec<usize>> {
    let listed = || known.iter().map(|name| name.to_string_lossy()).collect::<Vec<_>>().join(", ");
    if count != known.len() && (names.is_null() || what == "input") {
        return Err(Failure::value(format!(
            "the model has {} {what}s ({}), {count} were given",
            known.len(),
            listed()
        )));
    }
    if names.is_null() {
        return Ok((0..count).collect());
    }
    let mut places = Vec::new();
    // SAFETY: the caller's promise.
    for &name in unsafe { elements(names, count, "names")? } {
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, what)? };
        let at = known.iter().position(|known| known.to_str() == Ok(name));
        let at = at.ok_or_else(|| Failure::value(format!("the model has no {what} {name:?}; it has {}", listed())))?;
        if places.contains(&at) {
            return Err(Failure::value(format!("{what} {name:?} was given twice")));
        }
        places.push(at);
    }
    Ok(places)
}

/// Loads a model: an `.onnx` file, or a `.netcl` file with the network's configuration.
///
/// # Safety
/// `path` is a text, `device` is a handle, `model` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_load(
    path: *const c_char,
    device: *const Device,
    model: *mut *mut Model,
) -> Status {
    guarded("netcl_model_load", || {
        // SAFETY: the caller's promise.
        let (path, device) = unsafe { (text(path, "path")?, reference(device, "device")?) };
        let loaded = Model::load(Path::new(path), &device.handle.queue)?;
        // SAFETY: the caller's promise.
        unsafe { put(model, "model", handle(loaded)) }
    })
}

/// The number of inputs.
///
/// # Safety
/// `model` is a handle, `count` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_input_count(model: *const Model, count: *mut usize) -> Status {
    // SAFETY: the caller's promise.
    guarded("netcl_model_input_count", || unsafe { put(count, "count", reference(model, "model")?.inputs.len()) })
}

/// The number of outputs.
///
/// # Safety
/// `model` is a handle, `count` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_output_count(model: *const Model, count: *mut usize) -> Status {
    // SAFETY: the caller's promise.
    guarded("netcl_model_output_count", || unsafe { put(count, "count", reference(model, "model")?.outputs.len()) })
}

/// The name of an input; NULL where there is none. It lives as long as the handle.
///
/// # Safety
/// `model` is a handle or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_input_name(model: *const Model, index: usize) -> *const c_char {
    // SAFETY: the caller's promise.
    let names = unsafe { reference(model, "model") }.map(|model| model.inputs.as_slice());
    names.unwrap_or_default().get(index).map_or(std::ptr::null(), |name| CStr::as_ptr(name))
}

/// The name of an output; NULL where there is none. It lives as long as the handle.
///
/// # Safety
/// `model` is a handle or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_output_name(model: *const Model, index: usize) -> *const c_char {
    // SAFETY: the caller's promise.
    let names = unsafe { reference(model, "model") }.map(|model| model.outputs.as_slice());
    names.unwrap_or_default().get(index).map_or(std::ptr::null(), |name| CStr::as_ptr(name))
}

/// Runs a model. Several threads may run one model at the same time.
///
/// # Safety
/// `model` is a handle; `input_names` is NULL or has `input_count` texts, `inputs` as many handles, and likewise for outputs, of
/// which there is room for `output_count` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_run(
    model: *const Model,
    input_names: *const *const c_char,
    inputs: *const *const Tensor,
    input_count: usize,
    output_names: *const *const c_char,
    outputs: *mut *mut Tensor,
    output_count: usize,
) -> Status {
    guarded("netcl_model_run", || {
        // SAFETY: the caller's promise.
        let model = unsafe { reference(model, "model")? };
        // SAFETY: the caller's promise.
        let into = unsafe { places(input_names, input_count, &model.inputs, "input")? };
        // SAFETY: the caller's promise.
        let from = unsafe { places(output_names, output_count, &model.outputs, "output")? };
        if outputs.is_null() && output_count > 0 {
            return Err(Failure::value("outputs is NULL: the results have no place to go"));
        }
        // SAFETY: the caller's promise.
        let given = unsafe { elements(inputs, input_count, "inputs")? };
        let mut ordered = vec![None; given.len()];
        for (&tensor, &at) in given.iter().zip(&into) {
            // SAFETY: the caller's promise.
            ordered[at] = Some(unsafe { reference(tensor, "an input")? }.tensor.clone());
        }
        let results = model.run(ordered.into_iter().flatten().collect(), &from)?;
        for (place, tensor) in results.into_iter().enumerate() {
            // SAFETY: there is room for as many pointers.
            unsafe { put(outputs.wrapping_add(place), "outputs", handle(Tensor { tensor }))? };
        }
        Ok(())
    })
}

/// Frees a model.
///
/// # Safety
/// `model` is a handle that is used no more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_model_free(model: *mut Model) {
    // SAFETY: the caller's promise.
    unsafe { free(model) }
}
