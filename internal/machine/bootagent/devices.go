package bootagent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// makeStaticNodes makes the device nodes that load a module when they are opened, such as /dev/net/tun. depmod lists them in the file
// modules.devname, and every init makes them (kmod(8), static-nodes). An image without the list has none.
func makeStaticNodes(dev, list string) error {
	text, err := os.ReadFile(list)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		var module, name string
		var kind rune
		var major, minor uint32
		if n, _ := fmt.Sscanf(line, "%s %s %c%d:%d", &module, &name, &kind, &major, &minor); n != 5 || !filepath.IsLocal(name) {
			continue // a comment
		}
		mode := uint32(unix.S_IFCHR)
		if kind == 'b' {
			mode = unix.S_IFBLK
		}
		path := filepath.Join(dev, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(path, mode|0o600, int(unix.Mkdev(major, minor))); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("making the device %s: %w", path, err)
		}
	}
	return nil
}
