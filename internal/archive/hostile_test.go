package archive_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// hostile makes an archive of any entries, with a trailer that is right.
func hostile(t *testing.T, entries []*tar.Header) []byte {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range entries {
		if h.Typeflag != tar.TypeXGlobalHeader {
			h.Format = tar.FormatPAX
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 { // it is cut off there
			break
		}
	}
	_ = w.Close() // fails where an entry is cut off
	var out bytes.Buffer
	compressed, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := compressed.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	trailer := bytes.Repeat([]byte{' '}, 1024)
	binary.LittleEndian.PutUint32(trailer, 0x184D2A5B)
	binary.LittleEndian.PutUint32(trailer[4:], 1016)
	copy(trailer[8:], fmt.Sprintf(`{"nearmetal_volume_archive":1,"files":%d,"bytes":%d,"sha256":"%x"}`, len(entries), plain.Len(), sha256.Sum256(plain.Bytes())))
	return append(out.Bytes(), trailer...)
}

// plain is the tar file of an archive.
func plain(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := zstd.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
