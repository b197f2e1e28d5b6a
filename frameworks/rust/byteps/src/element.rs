//! The types that tensors are made of.

use byteps_sys as sys;

/// A number that a tensor may consist of.
///
/// # Safety
/// `DTYPE` describes the type exactly: any bits of that size are a value of it.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The data type as the C interface numbers it.
    const DTYPE: u32;
}

macro_rules! elements {
    ($($type:ty = $dtype:ident)*) => {$(
        unsafe impl Element for $type {
            const DTYPE: u32 = sys::$dtype;
        }
    )*};
}
elements! {
    i8 = BPS_INT8
    i16 = BPS_INT16
    i32 = BPS_INT32
    i64 = BPS_INT64
    u8 = BPS_UINT8
    f32 = BPS_FLOAT32
    f64 = BPS_FLOAT64
    F16 = BPS_FLOAT16
    Bf16 = BPS_BFLOAT16
    Complex<f32> = BPS_COMPLEX64
    Complex<f64> = BPS_COMPLEX128
    Bool = BPS_BOOL
}

/// A float of 16 bits (IEEE 754 binary16), as its bits. Of the layout of other crates' types, such as `half::f16`: a slice
/// of those may be cast to this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The upper 16 bits of an `f32` (bfloat16), as its bits; like [`F16`] for `half::bf16`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// A complex number: real part, imaginary part. Of the layout of other crates' types, such as `num_complex::Complex`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex<T> {
    /// The real part.
    pub re: T,
    /// The imaginary part.
    pub im: T,
}

/// A truth value as a byte, 0 or 1. (A `bool` of Rust's must never have another value, which no output promises
/// whose operation has failed.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl From<bool> for Bool {
    fn from(value: bool) -> Bool {
        Bool(value.into())
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> bool {
        value.0 != 0
    }
}

impl Bf16 {
    /// The nearest bfloat16; halfway cases go to the even one. NaN stays NaN.
    pub fn from_f32(value: f32) -> Bf16 {
        let bits = value.to_bits();
        if value.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }

    /// The same value; exact.
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl F16 {
    /// The nearest half; halfway cases go to the even one, what is too large becomes infinite. NaN stays NaN.
    pub fn from_f32(value: f32) -> F16 {
        let bits = value.to_bits();
        let sign = (bits >> 16 & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        if magnitude > 0x7f80_0000 {
            return F16(sign | 0x7e00);
        }
        if magnitude >= 0x4780_0000 {
            return F16(sign | 0x7c00);
        }
        // Below the least normal half the unit is 2^-24: adding 0.5 as an f32 rounds to it, in its last bits.
        if magnitude < 0x3880_0000 {
            let shifted = f32::from_bits(magnitude) + 0.5;
            return F16(sign | (shifted.to_bits() - 0.5_f32.to_bits()) as u16);
        }
        let rounded = magnitude + 0x0fff + (magnitude >> 13 & 1);
        F16(sign | ((rounded - 0x3800_0000) >> 13) as u16)
    }

    /// The same value; exact.
    pub fn to_f32(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let magnitude = u32::from(self.0 & 0x7fff);
        let unsigned = match magnitude {
            0..=0x3ff => f32::from_bits(0.5_f32.to_bits() + magnitude) - 0.5,
            0x400..=0x7bff => f32::from_bits((magnitude << 13) + 0x3800_0000),
            _ => f32::from_bits((magnitude << 13) + 0x7000_0000),
        };
        f32::from_bits(unsigned.to_bits() | sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_way_there_and_back() {
        for bits in 0..=u16::MAX {
            let value = F16(bits).to_f32();
            if value.is_nan() {
                assert!(F16::from_f32(value).to_f32().is_nan());
            } else {
                assert_eq!(F16::from_f32(value), F16(bits), "{}", value);
            }
            let value = Bf16(bits).to_f32();
            if value.is_nan() {
                assert!(Bf16::from_f32(value).to_f32().is_nan());
            } else {
                assert_eq!(Bf16::from_f32(value), Bf16(bits), "{}", value);
            }
        }
    }

    #[test]
    fn halves_round_to_even() {
        for (value, half) in [
            (1.0, 0x3c00),
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (65504.0, 0x7bff),
            (65519.9, 0x7bff),
            (65520.0, 0x7c00),
            (5.960_464_5e-8, 0x0001),
            (2.980_232_2e-8, 0x0000),
            (8.940_697e-8, 0x0002),
            (-2.0, 0xc000),
        ] {
            assert_eq!(F16::from_f32(value), F16(half), "{}", value);
        }
        assert_eq!(Bf16::from_f32(1.0 + 1.0 / 256.0), Bf16(0x3f80));
        assert_eq!(Bf16::from_f32(1.0 + 3.0 / 256.0), Bf16(0x3f82));
        assert_eq!(Bf16::from_f32(f32::MAX), Bf16(0x7f80));
    }
}
