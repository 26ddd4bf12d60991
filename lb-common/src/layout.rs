//! Compile-time proof of a struct's layout.

/// Asserts the size of a map type, the offset of each field, and that no byte is left unnamed
/// between them; with the feature `user`, also lets aya use the type in a map.
macro_rules! map_type {
    ($type:ident: $size:literal { $($field:ident @ $offset:literal),+ $(,)? }) => {
        const _: () = {
            assert!(core::mem::size_of::<$type>() == $size, concat!(stringify!($type), ": size"));
            // Fields are listed in order: each must start where the one before it ended.
            let mut end = 0;
            $(
                assert!(
                    core::mem::offset_of!($type, $field) == $offset && end == $offset,
                    concat!(stringify!($type), ".", stringify!($field), ": offset")
                );
                end += size_of_field(|value: &$type| &value.$field);
            )+
            assert!(end == $size, concat!(stringify!($type), ": bytes without a name"));

            const fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
                core::mem::size_of::<F>()
            }
        };

        // SAFETY: `repr(C)`, made of integers only, and the assertions above leave no padding.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $type {}
    };
}

pub(crate) use map_type;
