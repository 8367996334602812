package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// xzMagic begins what xz has compressed (xz's specification of its format, section 2.1.1.1), such as the kernel in Debian's vmlinuz.
var xzMagic = []byte{0xfd, '7', 'z', 'X', 'Z', 0}

// PlainKernel returns the image's kernel without its compression, as QEMU boots it, too (PVH): in a machine that is emulated by what is emulated itself,
// taking it apart is most of a boot. It is made once, by xz, in the folder of the image.
func PlainKernel(ctx context.Context, image Image) (string, error) {
	path := filepath.Join(filepath.Dir(image.Kernel), "vmlinux")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	whole, err := os.ReadFile(image.Kernel)
	if err != nil {
		return "", err
	}
	at := bytes.Index(whole, xzMagic)
	if at < 0 {
		return "", fmt.Errorf("kernel %s is not compressed by xz", image.Kernel)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".vmlinux-")
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name()) // unless it was renamed
	unpack := exec.CommandContext(ctx, "xz", "--decompress", "--stdout", "--single-stream")
	unpack.Stdin, unpack.Stdout = bytes.NewReader(whole[at:]), file
	if err := errors.Join(unpack.Run(), file.Chmod(0o644), file.Close()); err != nil {
		return "", fmt.Errorf("unpacking kernel %s: %w", image.Kernel, err)
	}
	return path, os.Rename(file.Name(), path)
}
