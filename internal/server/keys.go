package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Keys shows and replaces the keys of the site whose state directory this is, while no server uses it. Each change is one file, written whole or not at
// all: a command that was interrupted can be repeated.
type Keys struct {
	// Now is the clock.
	Now func() time.Time
}

// Show lists the CAs and secrets. It needs no server to be stopped.
func (k Keys) Show(dir string) (config.SiteKeys, error) {
	var keys config.SiteKeys
	cas, err := trust.ListCAs(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return keys, fmt.Errorf("%s is not the state directory of a server that has run; name it with --state", dir)
	}
	if err != nil {
		return keys, err
	}
	for _, ca := range cas {
		keys.CAs = append(keys.CAs, config.SiteCA{Pin: ca.Pin.String(), MadeAt: ca.MadeAt, ExpiresAt: ca.ExpireAt})
	}
	secrets, err := trust.OpenSecrets(dir)
	if err != nil {
		return keys, err
	}
	for _, s := range secrets {
		keys.SecretsSince = append(keys.SecretsSince, s.Since)
	}
	return keys, nil
}

// Rotate adds a CA, a secret or both.
func (k Keys) Rotate(dir string, ca, secret bool) (err error) {
	lock, err := k.lock(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if secret {
		if _, err := trust.RotateSecret(dir, k.Now()); err != nil {
			return err
		}
	}
	if ca {
		return trust.RotateCA(dir, k.Now())
	}
	return nil
}

// Retire drops all CAs but the newest.
func (k Keys) Retire(dir string) (dropped int, err error) {
	lock, err := k.lock(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	return trust.RetireCAs(dir, k.Now())
}

// lock makes sure that no server uses the directory.
func (k Keys) lock(dir string) (*os.File, error) {
	if _, err := k.Show(dir); err != nil { // makes nothing where no site is
		return nil, err
	}
	lock, err := lockState(dir)
	if errors.Is(err, ErrStateInUse) {
		return nil, fmt.Errorf("%w: %s; stop the server, and start it again afterwards: clusters go on meanwhile", ErrStateInUse, dir)
	}
	return lock, err
}
