//! Sums, products, maxima, and what happens when a device fails.

#![expect(clippy::float_cmp, reason = "these values are exact")]

use dnode_trainer::{DEVICE_BLOCK, DeviceError, Zeros};

use super::{KINDS, Words, assert_same, devices, downloaded, kind, uploaded};
use crate::emulated;

const LENGTHS: [usize; 8] = [1, 2, 31, 256, 257, 4097, 20_000, 100_003];

#[test]
fn products_and_sums_are_rounded_as_on_the_host() {
    for (name, device) in devices() {
        let mut words = Words(20);
        for (len, number) in LENGTHS.into_iter().flat_map(|len| (0..KINDS).map(move |it| (len, it)))
        {
            let (values, other) = (kind(number, len, &mut words), words.gaussian(len));
            let from = uploaded(&device, &values);
            for weight in [1.0, 0.3, -0.7, 0.0, 1e-30] {
                let what = format!("{name}, kind {number}, {len} elements, weight {weight}");
                let mut to = uploaded(&device, &other);
                let span = from.span(0..len);
                device.add_scaled(to.span_mut(0..len), span, weight).unwrap();
                let pairs = other.iter().zip(&values);
                let want: Vec<f32> = pairs.map(|(to, from)| to + weight * from).collect();
                assert_same(&downloaded(&device, &to), &want, &what);
                device.scale(to.span_mut(0..len), weight).unwrap();
                let want: Vec<f32> = want.iter().map(|it| weight * it).collect();
                assert_same(&downloaded(&device, &to), &want, &what);
                device.set_scaled(to.span_mut(0..len), span, weight).unwrap();
                let want: Vec<f32> = values.iter().map(|it| weight * it).collect();
                assert_same(&downloaded(&device, &to), &want, &what);
            }
        }
    }
}

#[test]
fn a_copy_keeps_every_bit() {
    for (_, device) in devices() {
        let mut words = Words(21);
        let values: Vec<f32> = (0..50_000).map(|_| f32::from_bits(words.next())).collect();
        let from = uploaded(&device, &values);
        let mut to = uploaded(&device, &vec![1.0; values.len()]);
        device.set_scaled(to.span_mut(0..values.len()), from.span(0..values.len()), 1.0).unwrap();
        let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|it| it.to_bits()).collect() };
        assert_eq!(bits(&downloaded(&device, &to)), bits(&values));
    }
}

#[test]
fn outer_steps_are_those_of_the_host() {
    for (name, device) in devices() {
        let mut words = Words(22);
        for len in LENGTHS {
            let (mut progress, mut momentum) = (words.gaussian(len), words.gaussian(len));
            let mut delta = uploaded(&device, &progress);
            let mut v = uploaded(&device, &momentum);
            let (alpha, beta) = (0.7, 0.8);
            for _ in 0..3 {
                device.direct(delta.span_mut(0..len), v.span_mut(0..len), (alpha, beta)).unwrap();
                for (delta, v) in progress.iter_mut().zip(&mut momentum) {
                    *v = beta * *v + *delta;
                    *delta = alpha * (*delta + beta * *v);
                }
            }
            assert_same(&downloaded(&device, &delta), &progress, &name);
            assert_same(&downloaded(&device, &v), &momentum, &name);
        }
    }
}

#[test]
fn squares_and_the_least_see_every_number() {
    for (name, device) in devices() {
        let mut words = Words(23);
        for (len, number) in LENGTHS.into_iter().flat_map(|len| (0..KINDS).map(move |it| (len, it)))
        {
            let values = kind(number, len, &mut words);
            let numbers = uploaded(&device, &values);
            let what = format!("{name}, kind {number}, {len} elements");
            let want: f64 = values.iter().map(|&it| f64::from(it) * f64::from(it)).sum();
            let found = device.squares(numbers.span(0..len)).unwrap();
            let near = (found - want).abs() <= 1e-12 * want;
            assert!(near || (found.is_nan() && want.is_nan()) || found == want, "{what}");
            let want = values.iter().map(|it| it.abs()).fold(f32::INFINITY, f32::min);
            let found = device.least(numbers.span(0..len)).unwrap();
            assert!(found == want, "{what}: {found} instead of {want}");
        }
        // A single one at any place is found.
        let mut values = vec![1.0; 20_000];
        for place in [0, 8191, 8192, 16_383, 19_999] {
            values[place] = -0.5;
            let numbers = uploaded(&device, &values);
            assert!(device.least(numbers.span(0..values.len())).unwrap() == 0.5);
            assert!(device.squares(numbers.span(0..values.len())).unwrap() == 19_999.25);
            values[place] = 1.0;
        }
        let numbers = uploaded(&device, &[f32::NAN; 5]);
        assert!(device.least(numbers.span(0..5)).unwrap() == f32::INFINITY);
    }
}

#[test]
fn bounds_are_those_of_the_host() {
    for (name, device) in devices() {
        let mut words = Words(24);
        for (len, number) in LENGTHS.into_iter().flat_map(|len| (0..KINDS).map(move |it| (len, it)))
        {
            let values = kind(number, len, &mut words);
            let blocks = len.div_ceil(DEVICE_BLOCK);
            // Known, and made wider once already.
            let mut before: Vec<f32> = words.gaussian(blocks).iter().map(|it| 4.0 * it).collect();
            before[0] = f32::NAN;
            let numbers = uploaded(&device, &values);
            for zeros in [Zeros::Unread, Zeros::Nothing] {
                let mut bounds = uploaded(&device, &before);
                device.learn(bounds.span_mut(0..blocks), numbers.span(0..len), 1.5, zeros).unwrap();
                let want: Vec<f32> = values
                    .chunks(DEVICE_BLOCK)
                    .zip(&before)
                    .map(|(block, before)| {
                        let most = block.iter().map(|it| it.abs().to_bits()).max().unwrap();
                        let found = 1.5 * f32::from_bits(most);
                        match () {
                            () if found > 0.0 => found.max(0.95 * before.abs()),
                            () if zeros == Zeros::Nothing => *before,
                            () if *before > 0.0 => -4.0 * before,
                            () => 0.0,
                        }
                    })
                    .collect();
                let what = format!("{name}, kind {number}, {len} elements, {zeros:?}");
                assert_same(&downloaded(&device, &bounds), &want, &what);
            }
        }
    }
}

#[test]
fn new_numbers_are_zero_and_orders_hand_over() {
    for (_, device) in devices() {
        let beside = device.beside().unwrap();
        let values = Words(25).gaussian(50_000);
        for _ in 0..5 {
            let mut numbers = uploaded(&device, &values);
            device.hand_over().unwrap();
            beside.scale(numbers.span_mut(0..values.len()), 2.0).unwrap();
            beside.hand_over().unwrap();
            device.scale(numbers.span_mut(0..values.len()), 2.0).unwrap();
            let want: Vec<f32> = values.iter().map(|it| 4.0 * it).collect();
            assert_same(&downloaded(&device, &numbers), &want, "both orders");
            // The memory of the numbers before them.
            drop(numbers);
            let fresh = dnode_trainer::DeviceVector::new(&beside, values.len()).unwrap();
            assert_same(&downloaded(&beside, &fresh), &vec![0.0; values.len()], "new");
        }
    }
}

#[test]
fn after_a_failure_every_order_fails_with_the_same_words() {
    let device = emulated::open_that_fails_after(2).unwrap();
    let beside = device.beside().unwrap();
    let mut numbers = uploaded(&device, &[1.0; 10]);
    device.scale(numbers.span_mut(0..10), 2.0).unwrap();
    beside.scale(numbers.span_mut(0..10), 2.0).unwrap();
    assert!(device.check().is_ok() && beside.check().is_ok());
    let failure = beside.squares(numbers.span(0..10)).unwrap_err();
    assert_eq!(failure, DeviceError("start squares: as the test asked for".to_owned()));
    let (one, other) = (device.check().unwrap_err(), beside.check().unwrap_err());
    assert!(one == failure && other == failure);
    assert_eq!(device.upload(&[0.0; 10], numbers.span_mut(0..10)).unwrap_err(), failure);
    assert_eq!(device.allocate(1).unwrap_err(), failure);
    assert_eq!(beside.hand_over().unwrap_err(), failure);
    assert_eq!(device.beside().unwrap_err(), failure);
    assert_eq!(device.download(numbers.span(0..10), &mut [0.0; 10]).unwrap_err(), failure);
}
