"""Ropes of bytes objects: the span list lives in C, the objects are kept alive from here."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

cdef enum:
    MAX_WINDOW_IOV = 1024


cdef inline int push(ax_rope *rope, bytes segment) except -1:
    if ax_rope_push(rope, PyBytes_AS_STRING(segment), PyBytes_GET_SIZE(segment)) != 0:
        raise MemoryError("no memory for another rope segment")
    return 0


# A tuple of bytes cannot be part of a cycle, so ropes are no work for the collector.
@cython.no_gc
@cython.final
cdef class Rope:
    def __cinit__(self, segments=()):
        ax_rope_init(&self.rope)
        self.kept = tuple([s for s in segments if not isinstance(s, bytes) or s])
        for segment in self.kept:
            if not isinstance(segment, bytes):
                raise TypeError(f"a rope segment is bytes, not {type(segment).__name__}")
            push(&self.rope, <bytes>segment)

    def __dealloc__(self):
        ax_rope_free(&self.rope)

    def __len__(self):
        return self.rope.bytes

    def __bytes__(self):
        return b"".join(self.kept)

    def __repr__(self):
        return f"<Rope bytes={self.rope.bytes} segments={self.rope.count}>"

    @property
    def segments(self):
        return self.kept

    def windows(self, int max_iov=128, size_t max_bytes=262144, size_t step=0):
        cdef iovec iov[MAX_WINDOW_IOV]
        cdef ax_rope_cursor cursor
        cdef int i, n
        cdef size_t taken
        if not 1 <= max_iov <= MAX_WINDOW_IOV or max_bytes == 0:
            raise ValueError(f"max_iov is 1 to {MAX_WINDOW_IOV} and max_bytes at least 1")
        cursor.seg = 0
        cursor.off = 0
        cursor.done = 0
        out = []
        while not ax_rope_at_end(&self.rope, &cursor):
            n = ax_rope_window(&self.rope, &cursor, iov, max_iov, max_bytes)
            window = [(<char *>iov[i].iov_base)[:iov[i].iov_len] for i in range(n)]
            taken = sum([len(w) for w in window])
            if step and step < taken:
                taken = step
            out.append(window)
            ax_rope_advance(&self.rope, &cursor, taken)
        return out


@cython.no_gc
@cython.final
cdef class RopeBuilder:
    def __cinit__(self):
        ax_rope_init(&self.rope)
        self.kept = []

    def __dealloc__(self):
        ax_rope_free(&self.rope)

    def __len__(self):
        return self.rope.count

    @property
    def nbytes(self):
        return self.rope.bytes

    def append(self, bytes segment not None):
        if PyBytes_GET_SIZE(segment) == 0:
            return
        self.kept.append(segment)
        try:
            push(&self.rope, segment)
        except MemoryError:
            self.kept.pop()
            raise

    def truncate(self, uint32_t segments):
        ax_rope_truncate(&self.rope, segments)
        del self.kept[segments:]

    def snapshot(self, bytes prefix not None=b"", bytes suffix not None=b""):
        cdef Rope out = Rope.__new__(Rope)
        cdef ax_rope *rope = &out.rope
        cdef list kept = self.kept
        if ax_rope_reserve(rope, self.rope.count + 2) != 0:
            raise MemoryError("no memory for a rope of that many segments")
        push(rope, prefix)
        ax_rope_extend(rope, &self.rope)  # cannot fail, the room is there
        push(rope, suffix)
        out.kept = (*((prefix,) if prefix else ()), *kept, *((suffix,) if suffix else ()))
        return out
