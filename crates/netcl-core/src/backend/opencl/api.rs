//! libOpenCL, loaded at run time: the same binary starts where no OpenCL exists.

use std::ffi::OsString;
use std::sync::OnceLock;

use libloading::Library;
use opencl_sys::cl_function_types::*;

use super::error::{ClError, ClResult};
use super::fork;
use crate::env;

/// No OpenCL library could be loaded; the text lists every name that was tried and the loader's answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("OpenCL is not available: {}; {}", tried.join("; "), self.advice())]
pub struct LoadError {
    /// One line per name tried: the name and why it failed.
    pub tried: Vec<String>,
    /// Whether [`env::OPENCL_LIB`] named the only one: then the variable is wrong, whatever is installed.
    pub named: bool,
}

impl LoadError {
    fn advice(&self) -> String {
        let variable = env::OPENCL_LIB.name;
        if self.named {
            format!("{variable} names a file that cannot be loaded; correct or unset it")
        } else {
            format!(
                "install an OpenCL loader (Debian: ocl-icd-libopencl1) and a driver, or name the library in {variable}"
            )
        }
    }
}

/// The function behind one of opencl-sys' `Option<fn>` types.
pub(super) trait EntryPoint {
    type Fn;
}

impl<F> EntryPoint for Option<F> {
    type Fn = F;
}

macro_rules! entry_points {
    (required { $($name:ident: $ty:ident,)* } optional { $($opt:ident: $opt_ty:ident,)* }) => {
        /// The library's entry points: those of OpenCL 1.2 are always there, later ones only perhaps.
        #[expect(non_snake_case, reason = "fields carry the names of the OpenCL functions they hold")]
        pub struct Api {
            $(pub(super) $name: <$ty as EntryPoint>::Fn,)*
            $(pub(super) $opt: $opt_ty,)*
            /// Keeps the functions above mapped; the API lives in a static, so this is never unloaded.
            _library: Library,
        }

        impl Api {
            fn from_library(library: Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol of this name has this type in every OpenCL library (the ABI is fixed by the
                        // standard and written down in opencl-sys), and the library stays loaded beside the pointer.
                        let symbol = unsafe {
                            library.get::<<$ty as EntryPoint>::Fn>(concat!(stringify!($name), "\0").as_bytes())
                        };
                        *symbol.map_err(|e| format!("lacks {} ({e})", stringify!($name)))?
                    },)*
                    $($opt: {
                        // SAFETY: as above.
                        let symbol = unsafe {
                            library.get::<<$opt_ty as EntryPoint>::Fn>(concat!(stringify!($opt), "\0").as_bytes())
                        };
                        symbol.ok().map(|s| *s)
                    },)*
                    _library: library,
                })
            }
        }
    };
}

entry_points! {
    required {
        clGetPlatformIDs: clGetPlatformIDs_t,
        clGetPlatformInfo: clGetPlatformInfo_t,
        clGetDeviceIDs: clGetDeviceIDs_t,
        clGetDeviceInfo: clGetDeviceInfo_t,
        clRetainDevice: clRetainDevice_t,
        clReleaseDevice: clReleaseDevice_t,
        clCreateContext: clCreateContext_t,
        clRetainContext: clRetainContext_t,
        clReleaseContext: clReleaseContext_t,
        clGetContextInfo: clGetContextInfo_t,
        clCreateCommandQueue: clCreateCommandQueue_t,
        clRetainCommandQueue: clRetainCommandQueue_t,
        clReleaseCommandQueue: clReleaseCommandQueue_t,
        clGetCommandQueueInfo: clGetCommandQueueInfo_t,
        clFlush: clFlush_t,
        clFinish: clFinish_t,
        clCreateBuffer: clCreateBuffer_t,
        clCreateSubBuffer: clCreateSubBuffer_t,
        clRetainMemObject: clRetainMemObject_t,
        clReleaseMemObject: clReleaseMemObject_t,
        clGetMemObjectInfo: clGetMemObjectInfo_t,
        clSetMemObjectDestructorCallback: clSetMemObjectDestructorCallback_t,
        clCreateProgramWithSource: clCreateProgramWithSource_t,
        clCreateProgramWithBinary: clCreateProgramWithBinary_t,
        clBuildProgram: clBuildProgram_t,
        clRetainProgram: clRetainProgram_t,
        clReleaseProgram: clReleaseProgram_t,
        clGetProgramInfo: clGetProgramInfo_t,
        clGetProgramBuildInfo: clGetProgramBuildInfo_t,
        clCreateKernel: clCreateKernel_t,
        clRetainKernel: clRetainKernel_t,
        clReleaseKernel: clReleaseKernel_t,
        clSetKernelArg: clSetKernelArg_t,
        clGetKernelInfo: clGetKernelInfo_t,
        clGetKernelArgInfo: clGetKernelArgInfo_t,
        clGetKernelWorkGroupInfo: clGetKernelWorkGroupInfo_t,
        clWaitForEvents: clWaitForEvents_t,
        clGetEventInfo: clGetEventInfo_t,
        clGetEventProfilingInfo: clGetEventProfilingInfo_t,
        clRetainEvent: clRetainEvent_t,
        clReleaseEvent: clReleaseEvent_t,
        clEnqueueReadBuffer: clEnqueueReadBuffer_t,
        clEnqueueWriteBuffer: clEnqueueWriteBuffer_t,
        clEnqueueCopyBuffer: clEnqueueCopyBuffer_t,
        clEnqueueFillBuffer: clEnqueueFillBuffer_t,
        clEnqueueMapBuffer: clEnqueueMapBuffer_t,
        clEnqueueUnmapMemObject: clEnqueueUnmapMemObject_t,
        clEnqueueNDRangeKernel: clEnqueueNDRangeKernel_t,
        clEnqueueMarkerWithWaitList: clEnqueueMarkerWithWaitList_t,
        clEnqueueBarrierWithWaitList: clEnqueueBarrierWithWaitList_t,
    }
    optional {
        // OpenCL 2.0 and 2.1. A loader may export them for drivers that lack them: ask the device's version first.
        clCreateCommandQueueWithProperties: clCreateCommandQueueWithProperties_t,
        clCloneKernel: clCloneKernel_t,
    }
}

impl Api {
    /// The process's OpenCL library, loaded at the first call; the answer, good or bad, stays the same afterwards.
    pub fn get() -> Result<&'static Api, LoadError> {
        static API: OnceLock<Result<Api, LoadError>> = OnceLock::new();
        API.get_or_init(load).as_ref().map_err(Clone::clone)
    }
}

/// The library for a call named `call`: refuses in a forked child, before any lock or driver is touched.
#[inline]
pub(super) fn api(call: &'static str) -> ClResult<&'static Api> {
    if fork::is_forked_child() {
        return Err(ClError::Forked { call });
    }
    Ok(Api::get()?)
}

fn load() -> Result<Api, LoadError> {
    // Registered before the driver's own threads can exist.
    fork::register();
    fork::set_loaded(true);
    let mut tried = Vec::new();
    for name in candidates() {
        // SAFETY: loading runs the library's initialisers. That is inherent to using OpenCL; the names are the
        // platform's own for its OpenCL loader, or the user's explicit choice.
        let library = unsafe { Library::new(&name) };
        match library.map_err(|e| reason(&e)).and_then(Api::from_library) {
            Ok(api) => return Ok(api),
            Err(why) => tried.push(format!("{}: {why}", name.to_string_lossy())),
        }
    }
    // Where there is no OpenCL, a child is as good as its parent.
    fork::set_loaded(false);
    Err(LoadError { tried, named: env::OPENCL_LIB.text().is_some() })
}

/// What the system's loader said: libloading keeps it one level down.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn candidates() -> Vec<OsString> {
    if let Some(name) = env::OPENCL_LIB.text() {
        return vec![name];
    }
    let names: &[&str] = if cfg!(target_os = "macos") {
        &["/System/Library/Frameworks/OpenCL.framework/OpenCL"]
    } else if cfg!(windows) {
        &["OpenCL.dll"]
    } else {
        &["libOpenCL.so.1", "libOpenCL.so"]
    };
    names.iter().map(OsString::from).collect()
}
