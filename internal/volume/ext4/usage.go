package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is what a file system has room for, and what is in it. Blocks of its own structures are not in UsedBytes.
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
	block, err := superblock(path)
	if err != nil {
		return Usage{}, err
	}
	return usageOf(block), nil
}

// Fits reports whether a file system that is not mounted has this size.
func Fits(path string, sizeBytes int64) (bool, error) {
	block, err := superblock(path)
	return err == nil && blocksOf(block) == sizeBytes/blockBytes, err
}

// superblock reads the superblock of a file system.
func superblock(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	block := make([]byte, superblockBytes)
	_, err = file.ReadAt(block, superblockAt)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint16(block[0x38:]) != unix.EXT4_SUPER_MAGIC {
		return nil, fmt.Errorf("%s has no ext4 file system", path)
	}
	return block, nil
}

func word(block []byte, at int) int64 { return int64(binary.LittleEndian.Uint32(block[at:])) }

func blocksOf(block []byte) int64 { return word(block, 0x04) | word(block, 0x150)<<32 }

// usageOf reads a superblock, <fs/ext4/ext4.h> struct ext4_super_block.
func usageOf(block []byte) Usage {
	free := word(block, 0x0c) | word(block, 0x158)<<32
	inodes, freeInodes, overhead := word(block, 0x00), word(block, 0x10), word(block, 0x248)
	return Usage{
		UsedBytes: max(0, blocksOf(block)-free-overhead) * blockBytes, Files: inodes - reservedInodes,
		UsedFiles: inodes - freeInodes - reservedInodes,
	}
}
