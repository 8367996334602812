package cleaning

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
)

// cleanDisk tries one method after the other until one is done and verified.
func (m *Machine) cleanDisk(ctx context.Context, s plan.Step, out step) {
	out.start()
	for i, method := range s.Methods {
		out.change(func(c *api.CleanStep) {
			c.Method, c.Fallbacks = string(method), nil
			for _, next := range s.Methods[i+1:] {
				c.Fallbacks = append(c.Fallbacks, string(next))
			}
			c.Bytes, c.TotalBytes = 0, work(method, s.Disk)
		})
		verified, err := m.attempt(ctx, s.Disk, method, out.told())
		if err == nil {
			out.change(func(c *api.CleanStep) { c.Fallbacks = nil; c.Bytes = c.TotalBytes })
			out.finish(api.CleanDone, verified, remains(method, s.Disk))
			return
		}
		out.change(func(c *api.CleanStep) { c.Tried = append(c.Tried, fmt.Sprintf("%s: %v", method, err)) })
		if ctx.Err() != nil {
			break
		}
	}
	var message string
	out.change(func(c *api.CleanStep) {
		c.Method, c.Fallbacks = "", nil
		message = "no method is left: " + strings.Join(c.Tried, "; ")
	})
	out.finish(api.CleanFailed, "", message)
}

// remains says what a method does not reach.
func remains(method plan.Method, d plan.Disk) string {
	if method.Expect() == plan.Changed || d.Transport == "virtio" {
		return ""
	}
	return "blocks that the disk has set aside are not reached: replaced sectors, and the spare blocks of flash"
}

// work is how many bytes a method and its verification go through.
func work(method plan.Method, d plan.Disk) int64 {
	read := d.Bytes
	if method.Expect() != plan.ZeroesEverywhere {
		read = 0
		for _, a := range plan.Samples(d.Bytes, d.BlockBytes, func(int64) int64 { return 0 }) {
			read += a.Bytes
		}
	}
	switch method {
	case plan.SecureDiscard, plan.Discard, plan.ZeroOut, plan.WriteZeroes:
		return d.Bytes + read
	}
	return read
}

func areas(method plan.Method, d plan.Disk, random func(int64) int64) []plan.Area {
	if method.Expect() == plan.ZeroesEverywhere {
		return plan.Whole(d.Bytes)
	}
	return plan.Samples(d.Bytes, d.BlockBytes, random)
}

// attempt erases the disk by one method and reads back what must be there. It returns how that was verified.
func (m *Machine) attempt(ctx context.Context, d plan.Disk, method plan.Method, told Told) (verified string, err error) {
	device, err := m.Open(d)
	if err != nil {
		return "", err
	}
	defer func() { _ = device.Close() }()
	parts := areas(method, d, randomBelow)
	if method.Expect() != plan.Changed {
		if err := device.Erase(ctx, method, told); err != nil {
			return "", err
		}
		return verify(ctx, device, d, parts, told, zeroes)
	}
	pattern := newPattern()
	if err := write(ctx, device, parts, pattern); err != nil {
		return "", fmt.Errorf("write a pattern that must be gone afterwards: %w", err)
	}
	if err := device.Erase(ctx, method, told); err != nil {
		return "", err
	}
	return verify(ctx, device, d, parts, told, pattern.gone)
}

// write writes the pattern, and reads it back: else its absence would prove nothing.
func write(ctx context.Context, device Device, parts []plan.Area, pattern *pattern) error {
	buffer := alignedBuffer(largest(parts))
	for _, a := range parts {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		data := buffer[:a.Bytes]
		pattern.fill(data, a.Offset)
		if _, err := device.WriteAt(data, a.Offset); err != nil {
			return fmt.Errorf("at byte %d: %w", a.Offset, err)
		}
	}
	if err := device.Sync(); err != nil {
		return err
	}
	for _, a := range parts {
		data := buffer[:a.Bytes]
		if _, err := device.ReadAt(data, a.Offset); err != nil {
			return fmt.Errorf("at byte %d: %w", a.Offset, err)
		}
		if pattern.gone(data, a.Offset) != nil {
			continue
		}
		return fmt.Errorf("at byte %d: what was written is not read back", a.Offset)
	}
	return nil
}

// verify reads parts of the disk and checks each.
func verify(ctx context.Context, device Device, d plan.Disk, parts []plan.Area, told Told, check func(data []byte, at int64) error) (string, error) {
	if err := device.Sync(); err != nil {
		return "", fmt.Errorf("flush the disk's cache: %w", err)
	}
	buffer := alignedBuffer(largest(parts))
	read := int64(0)
	for _, a := range parts {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		data := buffer[:a.Bytes]
		if _, err := device.ReadAt(data, a.Offset); err != nil {
			return "", fmt.Errorf("read back at byte %d: %w", a.Offset, err)
		}
		if err := check(data, a.Offset); err != nil {
			return "", fmt.Errorf("read back at byte %d: %w", a.Offset, err)
		}
		told.Bytes(a.Bytes)
		read += a.Bytes
	}
	if read >= d.Bytes {
		return "all of it was read back", nil
	}
	return fmt.Sprintf("read back: the first and the last MiB, and %d KiB at %d random places", (read-2<<20)>>10, len(parts)-2), nil
}

func largest(parts []plan.Area) int64 {
	most := int64(0)
	for _, a := range parts {
		most = max(most, a.Bytes)
	}
	return most
}

// zeroes checks that data are zeroes.
func zeroes(data []byte, _ int64) error {
	for i, b := range data {
		if b != 0 {
			return fmt.Errorf("not zeroes, from %d bytes on", i)
		}
	}
	return nil
}

// pattern is noise that differs at each place of a disk and in each cleaning.
type pattern struct{ block cipher.Block }

func newPattern() *pattern {
	key := make([]byte, 32)
	_, _ = rand.Read(key)            // crypto/rand never fails
	block, err := aes.NewCipher(key) // nor does a key of this length
	if err != nil {
		panic(err)
	}
	return &pattern{block}
}

// fill makes the pattern of a place, whose offset is a multiple of AES's blocks.
func (p *pattern) fill(data []byte, offset int64) {
	iv := make([]byte, aes.BlockSize)
	binary.BigEndian.PutUint64(iv[8:], uint64(offset/aes.BlockSize))
	clear(data)
	cipher.NewCTR(p.block, iv).XORKeyStream(data, data)
}

// sectorBytes is the smallest part of a disk that may have been left as it was.
const sectorBytes = 512

// gone checks that nothing is left of the pattern.
func (p *pattern) gone(data []byte, offset int64) error {
	was := make([]byte, len(data))
	p.fill(was, offset)
	for at := 0; at < len(data); at += sectorBytes {
		end := min(at+sectorBytes, len(data))
		if bytes.Equal(data[at:end], was[at:end]) {
			return fmt.Errorf("the pattern written before is still there, from %d bytes on", at)
		}
	}
	return nil
}
