//! The header is written by hand: every function of the library must be declared there as it is defined.

const HEADER: &str = include_str!("../../include/netcl.h");
const SOURCES: [&str; 4] = [
    include_str!("../../src/lib.rs"),
    include_str!("../../src/device.rs"),
    include_str!("../../src/tensor.rs"),
    include_str!("../../src/model.rs"),
];

/// A Rust type in C, with the space or stars before a name.
fn in_c(rust: &str, name: &str) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*mut ") {
        let inner = in_c(inner, "");
        return format!("{}*{name}", if inner.ends_with('*') { inner } else { format!("{} ", inner.trim_end()) });
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        // A constant pointer to pointers has the constant on the right, one to anything else on the left.
        return match inner.strip_prefix("*const ") {
            Some(inner) => format!("const {} *const *{name}", in_c(inner, "").trim_end()),
            None => format!("const {} *{name}", in_c(inner, "").trim_end()),
        };
    }
    let plain = match rust {
        "usize" => "size_t",
        "c_char" => "char",
        "c_void" => "void",
        "Status" => "netcl_status",
        "Device" => "netcl_device",
        "Tensor" => "netcl_tensor",
        "Model" => "netcl_model",
        // The only numbers besides lengths.
        "i32" => "netcl_dtype",
        other => panic!("{other} has no name in C"),
    };
    format!("{plain} {name}")
}

/// The declarations that the definitions in a source ask for.
fn declarations(source: &str) -> Vec<String> {
    let definitions = source.split("#[unsafe(no_mangle)]").skip(1);
    let declaration = |definition: &str| {
        let start = definition.find("fn ").unwrap() + 3;
        let (signature, _) = definition[start..].split_once(" {\n").unwrap();
        let (name, rest) = signature.split_once('(').unwrap();
        let (parameters, result) = rest.rsplit_once(')').unwrap();
        let parameters: Vec<String> = parameters
            .split(',')
            .map(str::trim)
            .filter(|parameter| !parameter.is_empty())
            .map(|parameter| parameter.split_once(": ").unwrap())
            .map(|(name, rust)| in_c(rust, name))
            .collect();
        let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
        match result.trim().strip_prefix("-> ") {
            Some(rust) => format!("{}({parameters});", in_c(rust, name)),
            None => format!("void {name}({parameters});"),
        }
    };
    definitions.map(declaration).collect()
}

#[test]
fn every_function_is_declared_as_it_is_defined() {
    let defined: Vec<String> = SOURCES.iter().flat_map(|source| declarations(source)).collect();
    assert!(defined.len() > 15, "{defined:?}");
    for declaration in &defined {
        assert!(HEADER.lines().any(|line| line == declaration), "include/netcl.h lacks: {declaration}");
    }
    let declared = HEADER.lines().filter(|line| line.ends_with(");") && line.contains("netcl_")).count();
    assert_eq!(declared, defined.len(), "include/netcl.h declares functions that the library does not have");
}

#[test]
fn every_status_has_the_same_number() {
    let constants = SOURCES[0].lines().filter_map(|line| line.strip_prefix("pub(crate) const "));
    let mut count = 0;
    for (name, value) in constants.map(|line| line.split_once(": Status = ").unwrap()) {
        let line = format!("NETCL_{name} = {}", value.trim_end_matches(';'));
        let found = HEADER.lines().any(|known| known.trim().split([',', ' ']).take(3).eq(line.split(' ')));
        assert!(found, "include/netcl.h lacks {line}");
        count += 1;
    }
    assert_eq!(count, 11);
}
