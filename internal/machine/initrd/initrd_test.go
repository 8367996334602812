package initrd

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"github.com/klauspost/compress/zstd"

	"github.com/nearmetal/nearmetal/internal/image"
)

// kernel makes a tree with a kernel's modules, each file as old as told.
func kernel(t *testing.T, age time.Duration, leaveOut string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "lib/modules/6.1.0-1-amd64")
	var dep, alias strings.Builder
	for _, m := range []string{
		"drivers/block/nbd", "drivers/block/loop", "drivers/md/dm-mod", "fs/erofs/erofs", "fs/overlayfs/overlay",
		"drivers/net/virtio_net", "drivers/net/e1000e", "drivers/net/unwanted", "net/failover", "drivers/infiniband/mlx5_ib",
	} {
		file := "kernel/" + m + ".ko"
		name := strings.ReplaceAll(filepath.Base(m), "-", "_")
		if name == leaveOut {
			continue
		}
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Repeat([]byte(name), 1000), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Now().Add(-age), time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		dep.WriteString(file + ":")
		if name == "virtio_net" {
			dep.WriteString(" kernel/net/failover.ko")
		}
		dep.WriteString("\n")
		alias.WriteString("alias test:" + name + "* " + name + "\n")
	}
	for name, text := range map[string]string{"modules.dep": dep.String(), "modules.alias": alias.String(), "modules.softdep": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func build(t *testing.T, c Config) ([]byte, Result) {
	t.Helper()
	var b bytes.Buffer
	result, err := Build(t.Context(), &b, c)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), result
}

// unpack returns the archive's files by name, links as "-> TARGET".
func unpack(t *testing.T, archive []byte) (files map[string]string, modes map[string]cpio.FileMode) {
	t.Helper()
	decompressor, err := zstd.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	defer decompressor.Close()
	files, modes = map[string]string{}, map[string]cpio.FileMode{}
	r := cpio.NewReader(decompressor)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, modes
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Linkname != "" {
			data = []byte("-> " + h.Linkname)
		}
		if _, twice := files[h.Name]; twice {
			t.Errorf("%s is there twice", h.Name)
		}
		if !h.ModTime.IsZero() && h.ModTime.Unix() != 0 || h.Uid != 0 || h.Guid != 0 {
			t.Errorf("%s has the time %v, owner %d, group %d: two builds would differ", h.Name, h.ModTime, h.Uid, h.Guid)
		}
		files[h.Name], modes[h.Name] = string(data), h.Mode
		if parent := filepath.Dir(h.Name); parent != "." && modes[parent]&^cpio.ModePerm != cpio.TypeDir {
			t.Errorf("%s comes before its folder: the kernel would not unpack it", h.Name)
		}
	}
}

func TestTheInitrdHoldsTheAgentAndTheModulesMachinesNeed(t *testing.T) {
	archive, result := build(t, Config{Root: kernel(t, 0, ""), Init: []byte("boot agent")})
	files, modes := unpack(t, archive)
	if files["init"] != "boot agent" || modes["init"].Perm() != 0o755 || files["sbin/modprobe"] != "-> ../init" {
		t.Errorf("init is %q with mode %v, modprobe %q", files["init"], modes["init"], files["sbin/modprobe"])
	}
	want := []string{"dm_mod", "e1000e", "erofs", "failover", "loop", "mlx5_ib", "nbd", "overlay", "virtio_net"}
	if !slices.Equal(result.Modules, want) {
		t.Errorf("modules %v, want %v", result.Modules, want)
	}
	base := "lib/modules/6.1.0-1-amd64/"
	for _, name := range []string{"kernel/drivers/net/virtio_net.ko", "kernel/net/failover.ko", "kernel/drivers/md/dm-mod.ko", "modules.dep", "modules.alias"} {
		if files[base+name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	if strings.Contains(files[base+"modules.alias"], "unwanted") || !strings.Contains(files[base+"modules.alias"], "alias test:virtio_net* virtio_net\n") {
		t.Errorf("the aliases are\n%s", files[base+"modules.alias"])
	}
	if result.SizeBytes != int64(len(archive)) || result.Digest != image.DigestOf(archive) || result.KernelVersion != "6.1.0-1-amd64" || result.UnpackedBytes <= result.SizeBytes {
		t.Errorf("the result is %+v for %d bytes", result, len(archive))
	}
	if _, small := build(t, Config{Root: kernel(t, 0, ""), Small: true}); slices.Contains(small.Modules, "mlx5_ib") {
		t.Error("a small initrd has what only inspection looks at")
	}
}

func TestTheSameTreeGivesTheSameBytes(t *testing.T) {
	init := bytes.Repeat([]byte("boot agent "), 300000)
	first, _ := build(t, Config{Root: kernel(t, 0, ""), Init: init})
	for range 3 {
		if again, _ := build(t, Config{Root: kernel(t, time.Hour, ""), Init: init}); !bytes.Equal(first, again) {
			t.Fatal("two builds of one tree, of other age and in another folder, differ")
		}
	}
}

func TestAKernelThatCannotBootMachinesIsRefused(t *testing.T) {
	_, err := Build(t.Context(), io.Discard, Config{Root: kernel(t, 0, "erofs")})
	if err == nil || !strings.Contains(err.Error(), "erofs") || !strings.Contains(err.Error(), "6.1.0-1-amd64") {
		t.Errorf("without erofs: %v", err)
	}
	if _, err := Build(t.Context(), io.Discard, Config{Root: kernel(t, 0, ""), Extra: []string{"nvme_rdma"}}); err == nil || !strings.Contains(err.Error(), "nvme_rdma") {
		t.Errorf("with a module it lacks: %v", err)
	}
	if _, err := Build(t.Context(), io.Discard, Config{Root: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "no kernel for metal") {
		t.Errorf("without a kernel: %v", err)
	}
	two := kernel(t, 0, "")
	if err := os.Mkdir(filepath.Join(two, "lib/modules/6.6.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := KernelVersion(two); err == nil || !strings.Contains(err.Error(), "6.1.0-1-amd64, 6.6.0") {
		t.Errorf("with two kernels: %v", err)
	}
}
