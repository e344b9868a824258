//! Tests of the rules by which places are kept.

use super::*;

const MOST: usize = 8;

fn peer(number: u8) -> PeerId {
    PeerId::from_public_key([number; 32])
}

/// A guest on this machine that came by itself.
fn guest(number: u8) -> Guest {
    let ip = Some([127, 0, 0, 1].into());
    Guest { peer: peer(number), dialled: false, ip, invitation: None }
}

fn from(number: u8, ip: &str) -> Guest {
    Guest { ip: Some(ip.parse().unwrap()), ..guest(number) }
}

/// All places are taken by peers from 0 on, one second after the other.
fn full(guests: impl Fn(u8) -> Guest, began: Instant) -> Slots {
    let mut slots = Slots::new(MOST);
    for (number, seconds) in (0..).zip(0..MOST as u64) {
        assert_eq!(slots.judge(&guests(number), began), Verdict::Free);
        slots.insert(&guests(number), began + Duration::from_secs(seconds));
    }
    slots
}

fn works(slots: &mut Slots, numbers: impl IntoIterator<Item = u8>, times: u64) {
    numbers.into_iter().for_each(|number| (0..times).for_each(|_| slots.worked(&peer(number))));
}

#[test]
fn while_nobody_works_those_who_came_first_keep_their_places() {
    let began = Instant::now();
    let slots = full(guest, began);
    assert_eq!(slots.judge(&guest(9), began + Duration::from_secs(3600)), Verdict::Full);
}

#[test]
fn who_misses_the_work_of_others_loses_its_place_once_it_has_had_its_chance() {
    let began = Instant::now();
    let mut slots = full(guest, began);
    works(&mut slots, 0..3, MOST as u64);
    assert_eq!(slots.judge(&guest(9), began), Verdict::Full);
    let later = began + Duration::from_secs(3) + CHANCE;
    assert_eq!(slots.judge(&guest(9), later), Verdict::InsteadOf(peer(3)));
    slots.served(&peer(3), later);
    assert_eq!(slots.judge(&guest(9), later), Verdict::Full, "it takes over the model");
    slots.remove(&peer(3));
    assert_eq!(slots.judge(&guest(9), later), Verdict::Free);
}

#[test]
fn who_has_worked_is_put_out_only_when_it_has_stopped_for_long() {
    let began = Instant::now();
    let mut slots = full(guest, began);
    works(&mut slots, 0..8, 1);
    let later = began + Duration::from_secs(3600);
    works(&mut slots, [1, 2, 3, 4, 5, 6, 7], MOST as u64);
    assert_eq!(slots.judge(&guest(9), later), Verdict::Full);
    works(&mut slots, 1..8, 16 * MOST as u64);
    assert_eq!(slots.judge(&guest(9), later), Verdict::InsteadOf(peer(0)));
}

#[test]
fn no_number_of_names_puts_out_those_that_work() {
    let began = Instant::now();
    let mut slots = full(guest, began);
    let mut now = began;
    for name in 100..=u8::MAX {
        now += Duration::from_secs(1);
        works(&mut slots, 0..3, 4);
        if let Verdict::InsteadOf(out) = slots.judge(&guest(name), now) {
            assert!((0..3).all(|honest| out != peer(honest)), "{out}");
            slots.remove(&out);
            slots.insert(&guest(name), now);
        }
        assert_eq!(slots.places.len(), MOST);
    }
}

#[test]
fn whom_this_peer_dials_takes_a_place_of_one_that_came_and_did_nothing() {
    let began = Instant::now();
    let mut slots = full(guest, began);
    let dialled = |number| Guest { dialled: true, ..guest(number) };
    works(&mut slots, [0], 1);
    assert_eq!(slots.judge(&dialled(9), began), Verdict::InsteadOf(peer(1)));
    let slots = full(dialled, began);
    assert_eq!(slots.judge(&dialled(9), began), Verdict::Full);
}

#[test]
fn who_comes_by_itself_leaves_places_for_those_that_are_dialled() {
    let began = Instant::now();
    let mut slots = Slots::new(DIALLED_FROM);
    let for_dialled = DIALLED_FROM / DIALLED_DIVISOR;
    let mut number = 0;
    while slots.judge(&guest(number), began) == Verdict::Free {
        slots.insert(&guest(number), began);
        works(&mut slots, [number], 1);
        number += 1;
    }
    assert_eq!(usize::from(number), DIALLED_FROM - for_dialled);
    assert_eq!(slots.judge(&guest(number), began), Verdict::Full);
    for number in number..DIALLED_FROM as u8 {
        assert!(slots.lacks_dialled(began));
        let dialled = Guest { dialled: true, ..guest(number) };
        assert_eq!(slots.judge(&dialled, began), Verdict::Free);
        slots.insert(&dialled, began);
    }
    assert!(!slots.lacks_dialled(began));
    assert!(!Slots::new(DIALLED_FROM - 1).lacks_dialled(began), "a small swarm has none of these");
}

#[test]
fn for_one_more_that_comes_only_another_that_came_gives_way() {
    let began = Instant::now();
    let mut slots = Slots::new(DIALLED_FROM);
    let dialled = |number| Guest { dialled: true, ..guest(number) };
    let for_dialled = DIALLED_FROM / DIALLED_DIVISOR;
    let came = DIALLED_FROM - for_dialled;
    (0..for_dialled as u8).for_each(|number| slots.insert(&dialled(number), began));
    for number in 0..came as u8 {
        let (number, since) = (100 + number, began + Duration::from_secs(1));
        assert_eq!(slots.judge(&guest(number), since), Verdict::Free);
        slots.insert(&guest(number), since);
        works(&mut slots, (number > 100).then_some(number), 4);
    }
    // Those that were dialled have missed the most, and are not put out for one that cannot have their place.
    let later = began + Duration::from_secs(2) + CHANCE;
    assert_eq!(slots.judge(&guest(99), later), Verdict::InsteadOf(peer(100)));
    slots.remove(&peer(100));
    assert_eq!(slots.judge(&guest(99), later), Verdict::Free);
}

#[test]
fn a_crowd_of_one_subnet_or_invitation_gives_way_to_others_at_once() {
    let began = Instant::now();
    let crowd = |number: u8| from(number, &format!("198.51.100.{number}"));
    let mut slots = full(crowd, began);
    assert_eq!(slots.judge(&crowd(9), began), Verdict::Full);
    assert_eq!(slots.judge(&from(9, "::ffff:198.51.100.9"), began), Verdict::Full);
    let other = from(9, "203.0.113.1");
    assert_eq!(slots.judge(&other, began), Verdict::InsteadOf(peer(7)));
    works(&mut slots, 2..8, 1);
    assert_eq!(slots.judge(&other, began), Verdict::Full, "a quarter is no crowd");
    let near = |number: u8| from(number, &format!("10.0.0.{number}"));
    assert_eq!(full(near, began).judge(&other, began), Verdict::Full, "private networks");
    let invited = |number| Guest { invitation: Some((peer(90), 1)), ..guest(number) };
    let slots = full(invited, began);
    assert_eq!(slots.judge(&invited(9), began), Verdict::Full);
    let other = Guest { invitation: Some((peer(90), 2)), ..guest(9) };
    assert_eq!(slots.judge(&other, began), Verdict::InsteadOf(peer(7)));
}

#[test]
fn of_a_crowd_who_is_served_is_not_the_youngest_and_stays_for_its_chance() {
    let began = Instant::now();
    let mut slots = full(|number| from(number, "192.0.2.1"), began);
    let stranger = from(9, "198.51.100.1");
    assert_eq!(slots.judge(&stranger, began), Verdict::InsteadOf(peer(7)));
    let later = began + Duration::from_secs(60);
    slots.served(&peer(0), later);
    assert_eq!(slots.judge(&stranger, later), Verdict::InsteadOf(peer(7)));
    slots.served(&peer(7), later);
    assert_eq!(slots.judge(&stranger, later), Verdict::InsteadOf(peer(6)));
}
