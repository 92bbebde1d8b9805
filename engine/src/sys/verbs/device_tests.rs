//! Two queue pairs between rva0 and rva1.
