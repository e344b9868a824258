//! C libraries that are used where they are there: opened at run time, and never linked.

use std::error::Error;
use std::path::Path;

pub use libloading::Library;

/// Opens the first of these that the system has, for the life of the process.
///
/// # Errors
/// One line: that none is there, and `advice` how to get it.
pub fn open(names: &[&str], advice: &str) -> Result<&'static Library, String> {
    let mut reason = String::new();
    for name in names {
        #[expect(unsafe_code, reason = "loading a library runs its initialisers")]
        // SAFETY: the libraries are named by their soname alone and come from where the system keeps
        // its own, lie beside one that is loaded, or were made by a test; their initialisers are made to
        // run in any process.
        match unsafe { Library::new(*name) } {
            // They register what has to stay as long as the process: memory, signals, devices.
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            Err(error) if reason.is_empty() => reason = first_line(&error),
            Err(_) => {}
        }
    }
    Err(format!("{reason}; {advice}"))
}

/// Where libraries of these paths, from the folder that has `torch`, may lie when a libtorch of Python's
/// packages is loaded; none when none is.
#[must_use]
pub fn beside_torch(names: &[&str]) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let torch = maps.lines().find(|line| line.ends_with("/libtorch_cpu.so"));
    let torch = torch.and_then(|line| Some(Path::new(&line[line.find('/')?..])));
    // torch/lib/libtorch_cpu.so
    let Some(packages) = torch.and_then(|path| path.ancestors().nth(3)) else { return Vec::new() };
    names.iter().map(|name| packages.join(name).to_string_lossy().into_owned()).collect()
}

/// The function `name` of a library.
///
/// # Errors
/// One line: there is no such symbol.
///
/// # Safety
/// `T` must be the type of that function, a function pointer.
#[expect(unsafe_code, reason = "nothing but the name says what the symbol is")]
pub unsafe fn function<T: Copy>(library: &'static Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { library.get::<T>(name) };
    symbol.map(|symbol| *symbol).map_err(|error| first_line(&error))
}

/// Declares the functions of a library that are used, by their types, and how to find them in it.
///
/// For where a crate has the types of a library, and no way to say which file is to be opened.
#[macro_export]
macro_rules! functions {
    ($(#[$about:meta])* $seen:vis struct $structure:ident { $($name:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[expect(non_snake_case, reason = "the names that the library has")]
        $seen struct $structure {
            $($seen $name: $type,)*
        }

        impl $structure {
            /// The functions of a library that has all of them.
            ///
            /// # Safety
            /// They must be functions of these types.
            unsafe fn of(library: &'static $crate::library::Library) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the caller's promise.
                    $($name: unsafe { $crate::library::function(library, stringify!($name)) }?,)*
                })
            }
        }
    };
}

/// What the system says about a library, in one line.
#[must_use]
pub fn first_line(error: &libloading::Error) -> String {
    // The error itself only says that it is one.
    let told = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    told.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_in_one_line_with_what_to_do() {
        let names = ["libdnode-none.so.9", "libdnode-none.so.8"];
        let text = open(&names, "install it").unwrap_err();
        assert!(text.contains(names[0]) && text.ends_with("; install it"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}
