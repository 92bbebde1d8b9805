//! Variables of a task, in place of the operating system's thread-local ones, and variables of a process, in place of
//! statics, which all simulated processes would share. Outside of a world both belong to the thread.

use crate::world::try_with;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The values of one task or one process, by the number of their key.
pub(crate) struct Table(Vec<Option<Slot>>);

struct Slot {
    value: NonNull<()>,
    /// Drops and frees the value.
    end: unsafe fn(NonNull<()>),
}

impl Table {
    pub const fn new() -> Table {
        Table(Vec::new())
    }

    fn find(&self, number: usize) -> Option<NonNull<()>> {
        self.0.get(number)?.as_ref().map(|slot| slot.value)
    }

    fn add(&mut self, number: usize, slot: Slot) {
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        self.0[number] = Some(slot);
    }

    /// Lets go of the values without dropping them.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for slot in self.0.drain(..).flatten() {
            // SAFETY: made by `find_or_make` with this value, and dropped once: the table is gone.
            unsafe { (slot.end)(slot.value) };
        }
    }
}

thread_local! {
    static OUTSIDE: RefCell<Table> = const { RefCell::new(Table::new()) };
}

/// A variable of which each task has its own. `local` makes such statics.
pub struct LocalKey<T: 'static>(Key<T>);

/// A variable of which each process has its own. `process_local` makes such statics.
pub struct ProcessKey<T: 'static>(Key<T>);

struct Key<T> {
    /// 0 until the first use.
    number: AtomicUsize,
    make: fn() -> T,
}

impl<T: 'static> Key<T> {
    fn number(&self) -> usize {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        match self.number.load(Ordering::Relaxed) {
            0 => {
                // Two threads that are here at once waste a number.
                let _ = self.number.compare_exchange(
                    0,
                    LAST.fetch_add(1, Ordering::Relaxed) + 1,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                self.number.load(Ordering::Relaxed)
            }
            number => number,
        }
    }

    /// `at` gives the table of the running task or process.
    fn find_or_make(&self, at: impl Fn(&mut dyn FnMut(&mut Table))) -> NonNull<T> {
        unsafe fn end<T>(value: NonNull<()>) {
            // SAFETY: made from a box of this type, below.
            drop(unsafe { Box::from_raw(value.cast::<T>().as_ptr()) });
        }
        let number = self.number();
        let mut found = None;
        at(&mut |table| found = table.find(number));
        if found.is_none() {
            // Outside of the table's borrow: this is the program's code.
            let value = NonNull::from(Box::leak(Box::new((self.make)()))).cast();
            at(&mut |table| table.add(number, Slot { value, end: end::<T> }));
            found = Some(value);
        }
        found.expect("just added").cast()
    }
}

/// As `std::thread::AccessError`. A variable of a task is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessError;

impl<T: 'static> LocalKey<T> {
    pub fn try_with<R>(&'static self, act: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        Ok(self.with(act))
    }

    #[doc(hidden)]
    pub const fn new(make: fn() -> T) -> LocalKey<T> {
        LocalKey(Key { number: AtomicUsize::new(0), make })
    }

    pub fn with<R>(&'static self, act: impl FnOnce(&T) -> R) -> R {
        let value = self.0.find_or_make(|look| {
            if try_with(|world| look(&mut world.tasks[world.current].locals)).is_none() {
                OUTSIDE.with_borrow_mut(|table| look(table));
            }
        });
        // SAFETY: the value is on the heap until its task ends, and this task runs.
        act(unsafe { value.as_ref() })
    }
}

impl<T: 'static> ProcessKey<T> {
    #[doc(hidden)]
    pub const fn new(make: fn() -> T) -> ProcessKey<T> {
        ProcessKey(Key { number: AtomicUsize::new(0), make })
    }

    pub fn with<R>(&'static self, act: impl FnOnce(&T) -> R) -> R {
        let value = self.0.find_or_make(|look| {
            let looked = try_with(|world| {
                let process = world.here();
                look(&mut world.process(process).statics)
            });
            if looked.is_none() {
                OUTSIDE.with_borrow_mut(|table| look(table));
            }
        });
        // SAFETY: the value is on the heap, and not dropped before the process's tasks are gone.
        act(unsafe { value.as_ref() })
    }
}

impl<T: 'static> LocalKey<Cell<T>> {
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(Cell::take)
    }

    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> LocalKey<RefCell<T>> {
    pub fn with_borrow<R>(&'static self, act: impl FnOnce(&T) -> R) -> R {
        self.with(|cell| act(&cell.borrow()))
    }

    pub fn with_borrow_mut<R>(&'static self, act: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| act(&mut cell.borrow_mut()))
    }
}

/// Declares variables of tasks, as `std::thread_local` does those of threads.
#[macro_export]
macro_rules! local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $(const)? $value:expr);+ $(;)?) => {
        $($(#[$attribute])* $visible static $name: $crate::local::LocalKey<$type> =
            $crate::local::LocalKey::new(|| $value);)+
    };
}

/// Declares variables of processes.
#[macro_export]
macro_rules! process_local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $(const)? $value:expr);+ $(;)?) => {
        $($(#[$attribute])* $visible static $name: $crate::local::ProcessKey<$type> =
            $crate::local::ProcessKey::new(|| $value);)+
    };
}
