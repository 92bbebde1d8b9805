//! A table says what the store had, and nothing else is taken.

use proptest::prelude::*;

use super::super::Begin;
use super::*;

const LAYOUT: Layout = Layout { unit_bytes: 64, units: 80 };

fn store() -> Store {
    Store::new(u64::from(LAYOUT.units) * LAYOUT.unit_bytes, LAYOUT.unit_bytes)
}

fn pages(store: &Store) -> Vec<Vec<u8>> {
    (0..LAYOUT.pages()).map(|page| store.table_page(page)).collect()
}

fn restored(pages: &[Vec<u8>]) -> Store {
    let mut store = store();
    pages.iter().zip(0..).for_each(|(bytes, page)| drop(store.restore_page(page, bytes)));
    store
}

/// A store of some objects, scattered by others that have gone, and one that is being written.
fn filled() -> Store {
    let mut store = store();
    for key in 0..26u8 {
        let Begin::Write(slot) = store.begin(&Digest([key + 1; 32]), 64 * u64::from(key % 3) + 17) else {
            panic!()
        };
        store.commit(slot, u64::from(key) << 40);
    }
    (0..26).step_by(2).for_each(|key| assert!(store.remove(&Digest([key + 1; 32]))));
    assert!(matches!(store.begin(&Digest([99; 32]), 1_400), Begin::Write(_)));
    let Begin::Write(slot) = store.begin(&Digest([77; 32]), 500) else { panic!() };
    store.commit(slot, 5);
    assert!(store.pieces(slot).count() > 1, "an object in several runs");
    store
}

fn listed(store: &Store) -> Vec<(Digest, u64, u64, Vec<super::super::Piece>)> {
    let object = |digest: Digest| {
        let slot = store.find(&digest).unwrap();
        (digest, store.length(slot), store.checksum(slot), store.pieces(slot).collect())
    };
    store.list(0, usize::MAX).0.into_iter().map(object).collect()
}

#[test]
fn a_restored_store_has_the_objects_where_they_were_and_the_rest_is_free() {
    let store = filled();
    let mut again = restored(&pages(&store));
    assert_eq!(listed(&again), listed(&store));
    let bytes: u64 = listed(&again).iter().map(|(_, length, ..)| length.div_ceil(64) * 64).sum();
    assert_eq!(again.free_bytes(), again.capacity() - bytes);
    assert_eq!(pages(&again), pages(&store));
    // Its places are given again, and its objects go in the end.
    while let Begin::Write(slot) = again.begin(&Digest([again.len() as u8 + 100; 32]), 10) {
        again.commit(slot, 0);
    }
    while again.evict().is_some() {}
    assert_eq!(again.free_bytes(), again.capacity());
}

#[test]
fn two_entries_that_claim_one_unit_are_not_both_taken() {
    let mut pages = pages(&filled());
    // A table that no node has written: the second entry has the first one's run, and a sum of its own.
    let entries: Vec<usize> =
        (0..16).map(|at| at * ENTRY).filter(|at| word(&pages[0], at + 32) != 0).collect();
    let run: [u8; 8] = pages[0][entries[0] + 56..][..8].try_into().unwrap();
    let same =
        entries[1..].iter().find(|at| word(&pages[0], **at + 56) as u32 == u64::from_le_bytes(run) as u32);
    let at = *same.expect("another of its length");
    pages[0][at + 56..at + 64].copy_from_slice(&run);
    let sum = sum_of(&pages[0][at..at + ENTRY], (at / ENTRY) as u32);
    put(&mut pages[0][at..at + ENTRY], CHECK, sum);
    assert_eq!(restored(&pages).len(), filled().len() - 1);
}

#[test]
fn a_superblock_says_what_it_is() {
    let page = LAYOUT.superblock(7);
    assert_eq!(Layout::find(&page, 7), Found::Tier(LAYOUT));
    assert_eq!(Layout::find(&page, 8), Found::Scheme);
    assert_eq!(Layout::find(&[0; PAGE], 7), Found::Nothing);
    let other = |at: usize, byte: u8| {
        let mut page = page;
        page[at] = byte;
        Layout::find(&page, 7)
    };
    assert_eq!((other(0, b'x'), other(8, 9), other(33, 1)), (Found::Other, Found::Format(9), Found::Other));
}

#[test]
fn a_layout_fits_into_its_file() {
    for bytes in [1 << 20, (64 << 20) + 4095, 1 << 40, 16 << 40] {
        let layout = Layout::of(bytes);
        let end = layout.data() + u64::from(layout.units) * layout.unit_bytes;
        assert!(end <= bytes && bytes - end < 2 * layout.unit_bytes + 2 * PAGE as u64, "{bytes}: {layout:?}");
    }
}

proptest! {
    #[test]
    fn a_changed_entry_is_passed_over(page in 0..2usize, at in 0..PAGE, bits in 1..=255u8) {
        let (store, mut pages) = (filled(), pages(&filled()));
        pages[page][at] ^= bits;
        let slot = page as u32 * ENTRIES_OF_PAGE + (at / ENTRY) as u32;
        let had = store.objects.get(slot as usize).is_some_and(|object| object.state == State::Readable);
        let again = restored(&pages);
        prop_assert_eq!(again.len(), store.len() - usize::from(had));
        // The page is written anew, so that nobody finds the entry later.
        let mended = self::store().restore_page(0, &pages[0]);
        prop_assert_eq!(mended.is_some(), page == 0);
    }
}
