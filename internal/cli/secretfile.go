package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// madeSecret is a token just made: its ID, its secret, which is shown this once, and the command that revokes it.
type madeSecret struct {
	id, secret string
	revoke     func() error
	command    string
}

// secretInto makes a token and writes its secret to a new file. The place for the secret comes first: a token whose secret nobody has must not stay
// behind.
func secretInto(path string, create func() (madeSecret, error)) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return usage("--out: %s exists already; no token was made", path)
	}
	if err != nil {
		return usage("--out: %v; no token was made", err)
	}
	made, err := create()
	if err != nil {
		_ = f.Close()
		_ = os.Remove(path)
		return err
	}
	_, err = fmt.Fprintln(f, made.secret)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path)
		if undo := made.revoke(); undo != nil {
			return fmt.Errorf("the secret of token %s could not be kept: %w; revoke it: %s %s (%w)", made.id, err, made.command, made.id, undo)
		}
		return fmt.Errorf("the secret could not be kept: %w; the token was revoked", err)
	}
	return nil
}
