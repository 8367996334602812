package server

import (
	"bytes"
	"errors"
	"io/fs"
	"runtime"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func TestWhatABuilderCallsAManifestIsNotReadWhenItIsTooLarge(t *testing.T) {
	i, err := openImages(t.TempDir(), bytes.Repeat([]byte{7}, trust.SecretBytes))
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	root := bytes.Repeat([]byte("root"), size/4)
	digest := image.DigestOf(root)
	if err := i.store.Put(t.Context(), digest, bytes.NewReader(root)); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := i.Load(digest); err == nil {
		t.Error("a root was taken for a manifest")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > size/4 {
		t.Errorf("%d bytes were taken up for it", n)
	}
}

func TestAManifestThatWasRemovedIsNotLoadedAnyMore(t *testing.T) {
	i, err := openImages(t.TempDir(), bytes.Repeat([]byte{7}, trust.SecretBytes))
	if err != nil {
		t.Fatal(err)
	}
	data, digest, err := (&image.Manifest{Environment: "debian-mpi"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := i.store.Put(t.Context(), digest, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Load(digest); err != nil {
		t.Fatal(err)
	}
	const untilTomorrow = -24 * time.Hour // also what was stored just now
	if freed, err := i.Collect(nil, untilTomorrow); err != nil || freed != int64(len(data)) {
		t.Fatalf("%d bytes are free, %v; want %d", freed, err, len(data))
	}
	if _, err := i.Load(digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("loading what was removed: %v; want that it does not exist", err)
	}
}
