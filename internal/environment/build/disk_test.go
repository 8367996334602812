package build_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// bootable is a disk of 1 MiB that BIOSes boot, or try to.
func bootable() []byte {
	disk := make([]byte, 1<<20)
	disk[0], disk[510], disk[511] = 0xf4, 0x55, 0xaa
	copy(disk[1<<19:], bytes.Repeat([]byte("payload "), 4096))
	return disk
}

// qemuImg runs qemu-img for a test.
func qemuImg(t *testing.T, args ...string) {
	t.Helper()
	needs.Program(t, "qemu-img")
	if out, err := exec.CommandContext(t.Context(), "qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %q: %v\n%s", args, err, out)
	}
}

// importDisk imports a disk image's file.
func (s *site) importDisk(file, disk string) (build.Result, error) {
	s.t.Helper()
	r, err := recipe.Parse([]byte("name: other\nbase: {disk: sha256:" + strings.Repeat("a", 64) + "}\n" + disk))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Run(context.Background(), build.Job{
		ID: "import", Recipe: r, Scratch: s.scratch, Output: s.output, Disk: file, Log: s.t.Output(),
	})
}

func TestADiskImageIsImportedWithTheSameDigestFromEachFormat(t *testing.T) {
	needs.Root(t, "builds")
	s := newSite(t)
	raw, qcow := filepath.Join(t.TempDir(), "disk.raw"), filepath.Join(t.TempDir(), "disk.qcow2")
	if err := os.WriteFile(raw, bootable(), 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "convert", "-f", "raw", "-O", "qcow2", raw, qcow)
	first, err := s.importDisk(raw, "")
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.importDisk(qcow, "")
	if err != nil {
		t.Fatal(err)
	}
	if first.Digest != second.Digest {
		t.Errorf("the same disk has digest %s as raw and %s as qcow2", first.Digest, second.Digest)
	}
	want := api.ForeignDisk{OS: api.SystemLinux, Firmware: api.FirmwareBIOS, Size: 1 << 20, Probe: api.Probe{SSH: true, Timeout: recipe.DefaultProbeTimeout}}
	m := first.Manifest
	if m.Disk == nil || *m.Disk != want || m.Root.Format != image.QCOW2 || len(m.Stacks) != 1 || m.Stacks[0] != api.StackVM {
		t.Errorf("manifest %+v with disk %+v, want %+v", m, m.Disk, want)
	}
	back := filepath.Join(t.TempDir(), "back")
	qemuImg(t, "convert", "-f", "qcow2", "-O", "raw", filepath.Join(s.output, m.Root.Digest.Hex()), back)
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, bootable()) {
		t.Errorf("the imported disk is not the one that was given (%v)", err)
	}
}

func TestADiskImageThatCanNotBeUsedIsRefusedWithTheReason(t *testing.T) {
	needs.Root(t, "builds")
	s := newSite(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("raw"), bootable(), 0o600), os.WriteFile(at("empty-disk"), make([]byte, 1<<20), 0o600), os.WriteFile(at("secret"), bootable(), 0o600),
		os.WriteFile(at("text"), []byte("no disk at all\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "convert", "-f", "raw", "-O", "qcow2", at("raw"), at("whole"))
	whole, err := os.ReadFile(at("whole"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("truncated"), whole[:len(whole)-128<<10], 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", at("secret"), "-F", "raw", at("backed"))
	qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+at("secret")+",data_file_raw=on", at("data-elsewhere"), "1M")
	for _, c := range []struct{ file, disk, want string }{
		{"empty-disk", "", "has no boot loader"},
		{"text", "", "a disk that boots has at least"},
		{"truncated", "", "truncated"},
		{"backed", "", "has a backing file"},
		{"data-elsewhere", "", "keeps its data in another file"},
		{"raw", "disk: {firmware: uefi}\n", "can't be booted by UEFI"},
	} {
		t.Run(c.file, func(t *testing.T) {
			_, err := s.importDisk(at(c.file), c.disk)
			var failure *build.Failure
			if !errors.As(err, &failure) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want a failure of the recipe with %q", err, c.want)
			}
		})
	}
	if left, err := os.ReadDir(s.output); err != nil || len(left) > 0 {
		t.Errorf("refused images left %v (%v)", left, err)
	}
}
