//! What is made once for each key and shared: kernel sources by their form.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;

pub(crate) struct Memo<K, V>(Mutex<HashMap<K, Arc<V>>>);

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Memo(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, V> Memo<K, V> {
    /// The value of a key; `make` makes it the first time.
    pub(crate) fn get(&self, key: &K, make: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = made.get(key) {
            return Ok(found.clone());
        }
        let value = Arc::new(make()?);
        made.insert(key.clone(), value.clone());
        Ok(value)
    }
}
