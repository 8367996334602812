// Package trust holds a site's secrets and decides who is who: the site secret, the site's own CA and server certificate,
// and the tokens of users and agents.
//
// A token is a bearer secret and carries the pin of the CA, so whoever holds a token file can verify the server without
// anything else. Nothing here ever skips the verification of a certificate or prints a secret. What a role may do is the API
// server's business. Start with Open (the server's side) and ReadToken (the clients').
package trust

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/durablefile"
)

// readPrivate reads a file that nobody but its owner may read.
func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a directory, not a file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, &ExposedError{Path: path, Mode: mode}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPrivateFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPrivateFile {
		return nil, fmt.Errorf("%s is longer than %d bytes, the most such a file has", path, maxPrivateFile)
	}
	return data, nil
}

// maxPrivateFile bounds the files read here: all are a few lines.
const maxPrivateFile = 1 << 20

// ExposedError is the error of a secret file that others than its owner may read.
type ExposedError struct {
	Path string
	Mode fs.FileMode
}

func (e *ExposedError) Error() string {
	return fmt.Sprintf("%s holds a secret but others may read it (mode %04o); run: chmod 600 %s, and replace the secret if someone has read it",
		e.Path, e.Mode, e.Path)
}

// writePrivate writes a file readable by its owner only: whole or not at all, and on the disk when it returns.
func writePrivate(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durablefile.Write(path, data, 0o600)
}
