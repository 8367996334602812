package bootagent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

func digestOf(content []byte) image.Digest {
	sum := sha256.Sum256(content)
	return image.Digest("sha256:" + hex.EncodeToString(sum[:]))
}

func TestWhatIsBootedNextIsFetchedWholeAndVerified(t *testing.T) {
	kernel, initrd, agent := []byte("a kernel"), []byte("an initrd"), []byte("the boot agent")
	blobs := map[string][]byte{digestOf(kernel).Hex(): kernel, digestOf(initrd).Hex(): initrd, digestOf(agent).Hex(): agent}
	broken := 1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := blobs[r.URL.Path[len("/images/"):]]
		switch {
		case !ok:
			http.NotFound(w, r)
		case broken > 0: // the first answer is no whole one, and longer than the right one
			broken--
			_, _ = w.Write(bytes.Repeat([]byte("x"), 100))
		default:
			_, _ = w.Write(content)
		}
	}))
	defer server.Close()
	next := &boot.Next{Kernel: digestOf(kernel), Initrds: []image.Digest{digestOf(initrd), digestOf(agent)}}
	gotKernel, gotInitrd, err := fetchNext(t.Context(), server.Client(), server.URL+"/images/", next)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = gotKernel.Close(), gotInitrd.Close() }()
	for _, part := range []struct {
		name      string
		got, want []byte
	}{
		{"kernel", readWhole(t, gotKernel), kernel},
		{"initrd", readWhole(t, gotInitrd), []byte("an initrd\x00\x00\x00the boot agent")},
	} {
		if !bytes.Equal(part.got, part.want) {
			t.Errorf("the %s is %q, want %q", part.name, part.got, part.want)
		}
	}
}

func TestAKernelThatIsNotTheOneNamedIsNotStarted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("another kernel")) }))
	defer server.Close()
	file, err := memoryFile("kernel")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := fetchBlob(t.Context(), server.Client(), server.URL+"/", digestOf([]byte("a kernel")), file, 0); !errors.Is(err, image.ErrDigest) {
		t.Errorf("it was taken: %v", err)
	}
}

func readWhole(t *testing.T, r io.ReadSeeker) []byte {
	t.Helper()
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
