// Package blockdev drives the kernel's block devices that a root goes through: NBD, device-mapper's linear target, loop.
//
// It only speaks the kernel's interfaces. What is behind a device, and when it is swapped, is the caller's. Start with AttachNBD and Linear.
package blockdev

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// NBD's ioctls and flags (Linux, include/uapi/linux/nbd.h).
const (
	nbdSetSock       = 0xab00
	nbdSetBlockSize  = 0xab01
	nbdDoIt          = 0xab03
	nbdClearSock     = 0xab04
	nbdSetSizeBlocks = 0xab07
	nbdDisconnect    = 0xab08
	nbdSetTimeout    = 0xab09
	nbdSetFlags      = 0xab0a

	nbdHasFlags     = 1 << 0
	nbdReadOnlyFlag = 1 << 1
)

// BlockBytes is the block size of all devices made here: EROFS's own.
const BlockBytes = 4096

// NBD is an attached network block device.
type NBD struct {
	device *os.File
	done   chan error
}

// AttachNBD makes a device (/dev/nbd0) serve what answers on the other end of a socket, read-only, sizeBytes rounded up to whole blocks.
// The socket belongs to the kernel afterwards. Reads wait without limit: the one who answers knows better when to give up.
func AttachNBD(path string, socket *os.File, sizeBytes int64) (*NBD, error) {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach a network block device: %w", err)
	}
	fail := func(what string, err error) (*NBD, error) {
		_ = device.Close()
		return nil, fmt.Errorf("attach %s: %s: %w", path, what, err)
	}
	for _, step := range []struct {
		what  string
		code  uintptr
		value uintptr
	}{
		{"block size", nbdSetBlockSize, BlockBytes},
		{"size", nbdSetSizeBlocks, uintptr((sizeBytes + BlockBytes - 1) / BlockBytes)},
		{"flags", nbdSetFlags, nbdHasFlags | nbdReadOnlyFlag},
		{"timeout", nbdSetTimeout, 0},
		{"socket", nbdSetSock, socket.Fd()},
	} {
		if err := ioctl(device, step.code, step.value); err != nil {
			return fail(step.what, err)
		}
	}
	n := &NBD{device: device, done: make(chan error, 1)}
	go func() {
		// The call lasts as long as the device is attached, and the kernel counts on the thread that made it: a signal that this thread
		// takes detaches the device.
		n.done <- uninterrupted(func() error { return ioctl(device, nbdDoIt, 0) })
	}()
	if err := n.await(path); err != nil {
		return nil, errors.Join(err, n.Detach())
	}
	return n, nil
}

// uninterrupted makes a call on a thread that takes no signals meanwhile: neither those of the process, as when a child has ended, nor the
// runtime's own, by which it takes turns (SIGURG).
func uninterrupted(call func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return err
	}
	err := call()
	return errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}

// await returns once the device has its size: the kernel sets it within the call that lasts.
func (n *NBD) await(path string) error {
	for deadline := time.Now().Add(attachDeadline); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if size, err := unix.IoctlGetInt(int(n.device.Fd()), unix.BLKGETSIZE64); err == nil && size > 0 {
			return nil
		}
		select {
		case err := <-n.done:
			n.done <- err
			return fmt.Errorf("attach %s: %w", path, err)
		default:
		}
	}
	return fmt.Errorf("attach %s: the kernel did not take it within %s", path, attachDeadline)
}

const attachDeadline = 5 * time.Second

// Detach disconnects the device; nothing may have it open any more.
func (n *NBD) Detach() error {
	err := ioctl(n.device, nbdDisconnect, 0)
	<-n.done
	_ = ioctl(n.device, nbdClearSock, 0)
	_ = n.device.Close()
	return err
}

func ioctl(f *os.File, code, value uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), code, value); errno != 0 {
		return errno
	}
	return nil
}
