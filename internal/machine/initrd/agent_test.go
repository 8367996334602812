package initrd_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/klauspost/compress/zstd"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/initrd"
)

func TestTheAgentsInitrdHoldsTheAgentAndNothingElse(t *testing.T) {
	program := bytes.Repeat([]byte("boot agent "), 1000)
	var first, second bytes.Buffer
	result, err := initrd.Agent(&first, program)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := initrd.Agent(&second, program); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Errorf("made twice it differs (%v)", err)
	}
	if result.Digest != image.DigestOf(first.Bytes()) || result.SizeBytes != int64(first.Len()) {
		t.Errorf("result %+v of %d bytes", result, first.Len())
	}
	decoder, err := zstd.NewReader(&first)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	archive := cpio.NewReader(decoder)
	var names []string
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Name == "init" {
			data, err := io.ReadAll(archive)
			if err != nil || !bytes.Equal(data, program) || h.Mode.Perm() != 0o755 {
				t.Errorf("init has %d bytes, mode %o (%v)", len(data), h.Mode.Perm(), err)
			}
		}
	}
	if want := []string{"init", "sbin", "sbin/modprobe"}; len(names) != len(want) || names[0] != want[0] || names[1] != want[1] || names[2] != want[2] {
		t.Errorf("it holds %v, want %v", names, want)
	}
}

func TestTheInitrdOfGuestsHoldsTheAgentAndTheProgramUncompressed(t *testing.T) {
	var out bytes.Buffer
	if err := initrd.Guest(&out, []byte("boot agent"), "lib/nearmetal/program", []byte("member agent")); err != nil {
		t.Fatal(err)
	}
	archive := cpio.NewReader(&out)
	found := map[string]string{}
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, _ := io.ReadAll(archive); h.Mode.IsRegular() && h.Mode.Perm() == 0o755 {
			found[h.Name] = string(data)
		}
	}
	if len(found) != 2 || found["init"] != "boot agent" || found["lib/nearmetal/program"] != "member agent" {
		t.Errorf("its programs are %q", found)
	}
}
