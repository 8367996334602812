package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is what a file system has room for, and what is in it. Blocks of its own structures count as neither.
type Usage struct{ UsedBytes, Files, UsedFiles int64 }

// OfMount returns the usage of a mounted file system.
func OfMount(dir string) (Usage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Usage{}, err
	}
	if s.Type != unix.EXT4_SUPER_MAGIC {
		return Usage{}, fmt.Errorf("%s is not a mount of ext4", dir)
	}
	return Usage{
		UsedBytes: int64(s.Blocks-s.Bfree) * s.Bsize, Files: int64(s.Files) - reservedInodes, UsedFiles: int64(s.Files-s.Ffree) - reservedInodes,
	}, nil
}

// The place of the superblock in a file system.
const superblockAt, superblockBytes = 1024, 1024

// OfImage returns the usage of a file system that is not mounted, from its superblock.
func OfImage(path string) (Usage, error) {
	file, err := os.Open(path)
	if err != nil {
		return Usage{}, err
	}
	block := make([]byte, superblockBytes)
	_, err = file.ReadAt(block, superblockAt)
	if err := errors.Join(err, file.Close()); err != nil {
		return Usage{}, err
	}
	u, err := usageOf(block)
	if err != nil {
		return u, fmt.Errorf("%s: %w", path, err)
	}
	return u, nil
}

// usageOf reads a superblock, <fs/ext4/ext4.h> struct ext4_super_block.
func usageOf(block []byte) (Usage, error) {
	word := func(at int) int64 { return int64(binary.LittleEndian.Uint32(block[at:])) }
	if binary.LittleEndian.Uint16(block[0x38:]) != unix.EXT4_SUPER_MAGIC {
		return Usage{}, errors.New("it has no ext4 file system")
	}
	size := int64(1024) << word(0x18)
	blocks, free := word(0x04)|word(0x150)<<32, word(0x0c)|word(0x158)<<32
	inodes, freeInodes, overhead := word(0x00), word(0x10), word(0x248)
	return Usage{
		UsedBytes: max(0, blocks-free-overhead) * size, Files: inodes - reservedInodes, UsedFiles: inodes - freeInodes - reservedInodes,
	}, nil
}
