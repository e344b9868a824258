//! Two orders of work on the same numbers, which take turns.

use dnode_protocol::frame::Codec;

use super::{Words, assert_same, devices, downloaded, uploaded};

/// Not a multiple of a piece, a warp or a block.
const ELEMENTS: usize = 9_001;
const TURNS: usize = 400;

#[test]
fn an_order_sees_what_another_was_asked_before_it_handed_over() {
    for (name, first) in devices() {
        let second = first.beside().unwrap();
        let orders = [&first, &second];
        let mut words = Words(7);
        let mut host = [words.gaussian(ELEMENTS), words.gaussian(ELEMENTS)];
        let mut numbers = [uploaded(&first, &host[0]), uploaded(&first, &host[1])];
        let all = 0..ELEMENTS;
        let mut last = 0;
        for turn in 0..TURNS {
            let (order, to) = (words.next() as usize % 2, words.next() as usize % 2);
            if order != last {
                orders[last].hand_over().unwrap();
                last = order;
            }
            let device = orders[order];
            let weight = words.normal();
            let [left, right] = &mut numbers;
            let (target, from) = if to == 0 { (left, &*right) } else { (right, &*left) };
            let beside = host[1 - to].clone();
            match words.next() % 6 {
                0 => {
                    host[to] = words.gaussian(ELEMENTS);
                    device.upload(&host[to], target.span_mut(all.clone())).unwrap();
                }
                1 => {
                    let target = target.span_mut(all.clone());
                    device.set_scaled(target, from.span(all.clone()), weight).unwrap();
                    host[to].copy_from_slice(&beside);
                    host[to].iter_mut().for_each(|it| *it *= weight);
                }
                2 => {
                    device.scale(target.span_mut(all.clone()), weight).unwrap();
                    host[to].iter_mut().for_each(|it| *it *= weight);
                }
                3 => {
                    // It goes while the device still has to read it.
                    let mut gone = uploaded(device, &beside);
                    device.scale(gone.span_mut(all.clone()), weight).unwrap();
                    let target = target.span_mut(all.clone());
                    device.set_scaled(target, gone.span(all.clone()), 1.0).unwrap();
                    host[to].copy_from_slice(&beside);
                    host[to].iter_mut().for_each(|it| *it *= weight);
                }
                4 => {
                    let mut codes = vec![0; Codec::F32.payload_bytes(ELEMENTS)];
                    device.encode(Codec::F32, from.span(all.clone()), &mut codes).unwrap();
                    let target = target.span_mut(all.clone());
                    device.decode(Codec::F32, &codes, target).unwrap().unwrap();
                    host[to] = beside;
                }
                _ => {
                    let what = format!("{name}, turn {turn}");
                    assert_same(&downloaded(device, target), &host[to], &what);
                }
            }
        }
        for (number, host) in numbers.iter().zip(&host) {
            assert_same(&downloaded(orders[last], number), host, &name);
        }
    }
}

#[test]
fn an_order_that_goes_does_first_what_it_was_asked() {
    for (name, first) in devices() {
        let mut words = Words(9);
        let mut numbers = uploaded(&first, &words.gaussian(ELEMENTS));
        for turn in 0..TURNS / 10 {
            let host = words.gaussian(ELEMENTS);
            first.hand_over().unwrap();
            let second = first.beside().unwrap();
            second.upload(&host, numbers.span_mut(0..ELEMENTS)).unwrap();
            second.hand_over().unwrap();
            drop(second);
            assert_same(&downloaded(&first, &numbers), &host, &format!("{name}, turn {turn}"));
        }
    }
}
