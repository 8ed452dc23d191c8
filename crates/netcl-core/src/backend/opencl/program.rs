//! Programs: compiled source, their kernels and their binaries.

use std::collections::HashSet;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use opencl_sys::*;

use super::api::api;
use super::context::Context;
use super::device::Device;
use super::error::{BuildError, ClError, ClResult, check};
use super::exit::{self, After};
use super::handle::{Handle, ProgramObject};
use super::info;
use super::kernel::Kernel;

/// A program built for one device; clones are the same program.
#[derive(Clone)]
pub struct Program(Arc<Inner>);

struct Inner {
    handle: Handle<ProgramObject>,
    context: Context,
    device: Device,
    kernel_names: Vec<String>,
    /// The source, also of what came from a binary.
    source: OnceLock<Arc<str>>,
    /// What a driver that compiles at a launch has compiled already.
    variants: Mutex<HashSet<u64>>,
}

impl Program {
    /// Compiles source text, options as given, without any cache. [`build`](super::build) is the usual way.
    pub fn from_source(context: &Context, device: &Device, source: &str, options: &str) -> ClResult<Program> {
        const CALL: &str = "clCreateProgramWithSource";
        let api = api(CALL)?;
        let mut pointer = source.as_ptr().cast();
        let length = source.len();
        let mut code = 0;
        // SAFETY: one string of `length` bytes is passed, which the driver copies.
        let raw = unsafe { (api.clCreateProgramWithSource)(context.raw(), 1, &mut pointer, &length, &mut code) };
        check(CALL, code)?;
        // SAFETY: the call returned a new reference.
        let handle = unsafe { Handle::adopt(CALL, raw)? };
        Program::finish(handle, context, device, options, source)
    }

    /// Loads what [`Program::binary`] returned on the same device and driver.
    pub fn from_binary(context: &Context, device: &Device, binary: &[u8], options: &str) -> ClResult<Program> {
        const CALL: &str = "clCreateProgramWithBinary";
        let api = api(CALL)?;
        if binary.is_empty() {
            return Err(ClError::call(CALL, CL_INVALID_BINARY));
        }
        let mut pointer = binary.as_ptr();
        let (length, id) = (binary.len(), device.raw_id());
        let (mut status, mut code) = (0, 0);
        // SAFETY: one device and one binary of `length` bytes are passed, which the driver copies.
        let raw = unsafe {
            (api.clCreateProgramWithBinary)(context.raw(), 1, &id, &length, &mut pointer, &mut status, &mut code)
        };
        check(CALL, code)?;
        // SAFETY: the call returned a new reference.
        let handle = unsafe { Handle::adopt(CALL, raw)? };
        check(CALL, status)?;
        // A PTX binary is text, and worth showing when it does not assemble.
        let text = std::str::from_utf8(binary).unwrap_or("(a binary)");
        Program::finish(handle, context, device, options, text)
    }

    /// Wraps a `cl_program` made by other code; a reference is added.
    ///
    /// # Safety
    /// `ptr` is a valid `cl_program` of the loaded library, already built.
    pub unsafe fn from_int_ptr(ptr: usize) -> ClResult<Program> {
        const CALL: &str = "clGetProgramInfo";
        let api = api(CALL)?;
        // SAFETY: the caller vouches for the pointer.
        let handle = unsafe { Handle::<ProgramObject>::share(ptr as *mut c_void)? };
        let query = |what| {
            // SAFETY: the program is alive, and `info` passes a matching capacity.
            move |size, to, got| unsafe { (api.clGetProgramInfo)(ptr as cl_program, what, size, to, got) }
        };
        let context = info::pointer(CALL, query(CL_PROGRAM_CONTEXT))?;
        let devices: Vec<usize> = info::list(CALL, query(CL_PROGRAM_DEVICES))?;
        let first = *devices.first().ok_or_else(|| ClError::usage(CALL, "the program has no device"))?;
        // SAFETY: the driver names the program's own context and device.
        let (context, device) = unsafe { (Context::from_int_ptr(context as usize)?, Device::from_int_ptr(first)?) };
        Program::wrap(handle, &context, &device)
    }

    fn finish(
        handle: Handle<ProgramObject>,
        context: &Context,
        device: &Device,
        options: &str,
        source: &str,
    ) -> ClResult<Program> {
        const CALL: &str = "clBuildProgram";
        let api = api(CALL)?;
        let text = CString::new(options).map_err(|_| ClError::usage(CALL, "the options hold a zero byte"))?;
        let id = device.raw_id();
        // SAFETY: program and device are alive, the options end with a zero, and without a callback the call blocks.
        let code = unsafe { (api.clBuildProgram)(handle.raw(), 1, &id, text.as_ptr(), None, std::ptr::null_mut()) };
        exit::wait_at_exit(After::Build);
        match code {
            CL_SUCCESS => Program::wrap(handle, context, device),
            // Compiler failures carry a log; the other codes speak of the driver or the call.
            CL_BUILD_PROGRAM_FAILURE | CL_INVALID_BUILD_OPTIONS => Err(ClError::Build(Box::new(BuildError {
                device: device.name().to_owned(),
                options: options.to_owned(),
                log: build_log(&handle, device).unwrap_or_default(),
                source: source.to_owned(),
                cached: false,
            }))),
            code => Err(ClError::call(CALL, code).about(|| format!("{device:?}, options {options}"))),
        }
    }

    fn wrap(handle: Handle<ProgramObject>, context: &Context, device: &Device) -> ClResult<Program> {
        const CALL: &str = "clGetProgramInfo";
        let api = api(CALL)?;
        // SAFETY: the program is alive, and `info` passes a matching capacity.
        let names = info::string(CALL, |size, to, got| unsafe {
            (api.clGetProgramInfo)(handle.raw(), CL_PROGRAM_KERNEL_NAMES, size, to, got)
        })?;
        let mut kernel_names: Vec<String> =
            names.split(';').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        kernel_names.sort(); // drivers list them in any order
        Ok(Program(Arc::new(Inner {
            handle,
            context: context.clone(),
            device: device.clone(),
            kernel_names,
            source: OnceLock::new(),
            variants: Mutex::default(),
        })))
    }

    /// The `cl_program` as a number.
    pub fn int_ptr(&self) -> usize {
        self.0.handle.raw() as usize
    }

    pub(super) fn raw(&self) -> cl_program {
        self.0.handle.raw()
    }

    /// The source that it was built from; `None` where other code built it.
    pub fn source(&self) -> Option<&Arc<str>> {
        self.0.source.get()
    }

    pub(super) fn note_source(&self, source: &str) {
        self.0.source.get_or_init(|| source.into());
    }

    /// Notes that a variant of a kernel is launched; true at the first time.
    pub(super) fn note_variant(&self, variant: u64) -> bool {
        self.0.variants.lock().unwrap_or_else(PoisonError::into_inner).insert(variant)
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The device it was built for.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The names of its kernels, sorted.
    pub fn kernel_names(&self) -> &[String] {
        &self.0.kernel_names
    }

    /// Makes a kernel object; keep it, making one costs time.
    pub fn kernel(&self, name: &str) -> ClResult<Kernel> {
        Kernel::new(self, name)
    }

    /// What the compiler said, also when it was content.
    pub fn log(&self) -> ClResult<String> {
        build_log(&self.0.handle, self.device())
    }

    /// The compiled form (PTX text on NVIDIA); empty where the driver has none.
    pub fn binary(&self) -> ClResult<Vec<u8>> {
        const CALL: &str = "clGetProgramInfo";
        let api = api(CALL)?;
        let query = |what| {
            // SAFETY: the program is alive, and `info` passes a matching capacity.
            move |size, to, got| unsafe { (api.clGetProgramInfo)(self.raw(), what, size, to, got) }
        };
        // A program may be shared by several devices when it was made elsewhere; ours is one of them.
        let devices: Vec<usize> = info::list(CALL, query(CL_PROGRAM_DEVICES))?;
        let sizes: Vec<usize> = info::list(CALL, query(CL_PROGRAM_BINARY_SIZES))?;
        let mut binaries: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![0; size]).collect();
        let mut pointers: Vec<*mut u8> = binaries.iter_mut().map(|b| b.as_mut_ptr()).collect();
        // SAFETY: the driver writes each binary through its pointer, and each block has the size the driver named.
        check(CALL, unsafe {
            (api.clGetProgramInfo)(
                self.raw(),
                CL_PROGRAM_BINARIES,
                size_of_val(pointers.as_slice()),
                pointers.as_mut_ptr().cast(),
                std::ptr::null_mut(),
            )
        })?;
        let index = devices.iter().position(|&d| d == self.device().int_ptr()).unwrap_or(0);
        Ok(if index < binaries.len() { binaries.swap_remove(index) } else { Vec::new() })
    }
}

fn build_log(handle: &Handle<ProgramObject>, device: &Device) -> ClResult<String> {
    const CALL: &str = "clGetProgramBuildInfo";
    let api = api(CALL)?;
    // SAFETY: program and device are alive, and `info` passes a matching capacity.
    info::string(CALL, |size, to, got| unsafe {
        (api.clGetProgramBuildInfo)(handle.raw(), device.raw_id(), CL_PROGRAM_BUILD_LOG, size, to, got)
    })
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} for {:?})", self.kernel_names().join(", "), self.device().name())
    }
}
