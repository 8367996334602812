package bootagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

const (
	// nextDeadline is how long fetching what the machine boots next may take, nextTries how often each part is tried. Then its firmware does it.
	nextDeadline = 2 * time.Minute
	nextTries    = 3
	// initrdAlignment is where an archive within an initrd may begin (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).
	initrdAlignment = 4
	// maxNextBytes bounds each part: kernels and initrds of machines are smaller than this.
	maxNextBytes = 1 << 30
)

// startNext ends the machine by starting the kernel that it boots next (kexec_file_load(2)), which spares it its firmware. It reports whether it could: a
// kernel that allows no other, or a part that can't be fetched, leaves it to the firmware.
func (a *Agent) startNext(next *boot.Next) bool {
	ctx, cancel := context.WithTimeout(context.Background(), nextDeadline)
	defer cancel()
	if err := a.loadNext(ctx, next); err != nil {
		a.log.Warn("what this machine boots next can't be started from here; its firmware starts it", "error", err)
		return false
	}
	a.init.end(nextKernel)
	return true
}

func (a *Agent) loadNext(ctx context.Context, next *boot.Next) error {
	kernel, initrd, err := fetchNext(ctx, a.images, a.args.Images, next)
	if err != nil {
		return err
	}
	defer func() { _, _ = kernel.Close(), initrd.Close() }()
	if err := unix.KexecFileLoad(int(kernel.Fd()), int(initrd.Fd()), next.Arguments, 0); err != nil {
		return fmt.Errorf("load the kernel: %w", err)
	}
	return nil
}

// fetchNext gets kernel and initrd, verified, into memory.
func fetchNext(ctx context.Context, client *http.Client, images string, next *boot.Next) (kernel, initrd *os.File, err error) {
	if kernel, err = memoryFile("kernel"); err != nil {
		return nil, nil, err
	}
	if initrd, err = memoryFile("initrd"); err != nil {
		return nil, nil, errors.Join(err, kernel.Close())
	}
	err = appendBlob(ctx, client, images, next.Kernel, kernel)
	for _, digest := range next.Initrds {
		if err == nil {
			err = appendBlob(ctx, client, images, digest, initrd)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, kernel.Close(), initrd.Close())
	}
	return kernel, initrd, nil
}

func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// appendBlob appends a blob to a file, verified; a try that fails leaves nothing behind.
func appendBlob(ctx context.Context, client *http.Client, images string, digest image.Digest, to *os.File) error {
	end, err := to.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	at := (end + initrdAlignment - 1) / initrdAlignment * initrdAlignment
	for try := 0; ; try++ {
		if err = fetchBlob(ctx, client, images+digest.Hex(), digest, to, at); err == nil || try+1 == nextTries || backoff(ctx, try) != nil {
			return err
		}
	}
}

func fetchBlob(ctx context.Context, client *http.Client, url string, digest image.Digest, to *os.File, at int64) error {
	if err := to.Truncate(at); err != nil {
		return err
	}
	resp, err := get(ctx, client, url)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(io.NewOffsetWriter(to, at), sum), io.LimitReader(resp.Body, maxNextBytes)); err != nil {
		return err
	}
	if got := image.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))); got != digest {
		return fmt.Errorf("%s: %w: it is %s", url, image.ErrDigest, got)
	}
	return nil
}
