// Package keys keeps the keys that protect an InfiniBand fabric's subnet management: whoever has a whole adapter can send any packet of subnet
// management, and ports obey those with their M_Key alone.
//
// A file has the keys as OpenSM's options have them. The package must never show a key, or replace keys that are there: ports obey the old ones.
// Start with Managed.
package keys

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/durablefile"
)

// Keys are a fabric's. They have 64 bits each.
type Keys struct {
	// Management is the M_Key, which ports ask of whoever reads or changes them (InfiniBand Architecture Specification 1.2.1, 14.2.4).
	Management uint64
	// Manager is the SM_Key, by which subnet managers know each other. It is the same for all of a fabric.
	Manager uint64
	// Access is by which requests of subnet administration are trusted.
	Access uint64
}

const (
	// leaseSeconds is after how long without a subnet manager a port that is asked for its key in vain gives its protection up. OpenSM renews the lease
	// with each sweep, every 10 s. Without a lease, a port whose key is lost could not be managed any more until it is reset.
	leaseSeconds = 60
	// protectionLevel 2: nothing of a port is read or changed without its M_Key (14.2.4.1).
	protectionLevel = 2
)

// names are the options of OpenSM that have keys.
const (
	managementName = "m_key"
	managerName    = "sm_key"
	accessName     = "sa_key"
)

// Managed returns the keys in a file, which it makes with new ones when it does not exist. The caller excludes others meanwhile.
func Managed(path string) (Keys, error) {
	k, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if k, err = generate(); err != nil {
		return Keys{}, err
	}
	const head = "# The keys of this fabric's subnet management, made by Nearmetal. Ports obey them: keep this file, and keep it secret.\n"
	return k, durablefile.Write(path, []byte(head+k.lines()), 0o600)
}

func generate() (k Keys, err error) {
	for _, key := range []*uint64{&k.Management, &k.Manager, &k.Access} {
		for *key == 0 {
			var random [8]byte
			if _, err := rand.Read(random[:]); err != nil {
				return Keys{}, err
			}
			*key = binary.BigEndian.Uint64(random[:])
		}
	}
	return k, nil
}

// Load reads a file of keys: m_key, and maybe sm_key and sa_key, as OpenSM's options have them. Others than its owner must not be able to read it.
func Load(path string) (Keys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Keys{}, fmt.Errorf("the keys of the fabric: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Keys{}, fmt.Errorf("the keys of the fabric, %s, can be read by others than their owner; chmod 600 %[1]s", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Keys{}, fmt.Errorf("the keys of the fabric: %w", err)
	}
	k := Keys{Manager: 1, Access: 1} // OpenSM's defaults
	at := map[string]*uint64{managementName: &k.Management, managerName: &k.Manager, accessName: &k.Access}
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		key := at[words[0]]
		if key == nil || len(words) != 2 {
			return Keys{}, fmt.Errorf("the keys of the fabric, %s, line %d: write m_key, sm_key or sa_key and a number of 64 bits like 0x1f00", path, i+1)
		}
		if *key, err = strconv.ParseUint(words[1], 0, 64); err != nil || *key == 0 {
			return Keys{}, fmt.Errorf("the keys of the fabric, %s, line %d: %s is not a number of 64 bits like 0x1f00, other than 0", path, i+1, words[0])
		}
	}
	if k.Management == 0 {
		return Keys{}, fmt.Errorf("the keys of the fabric, %s, lack m_key", path)
	}
	return k, nil
}

func (k Keys) lines() string {
	return fmt.Sprintf("%s 0x%016x\n%s 0x%016x\n%s 0x%016x\n", managementName, k.Management, managerName, k.Manager, accessName, k.Access)
}

// Options returns the operator's options of OpenSM with those of the keys at their end. Options of keys in the operator's are an error.
func (k Keys) Options(operator string) (string, error) {
	for i, line := range strings.Split(operator, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case managementName, managerName, accessName, "m_key_lease_period", "m_key_protection_level", "m_key_lookup":
			return "", fmt.Errorf("line %d sets %s, which follows from the fabric's keys; remove the line", i+1, words[0])
		}
	}
	if operator != "" && !strings.HasSuffix(operator, "\n") {
		operator += "\n"
	}
	// Without a lookup, a subnet manager that takes over on another machine knows the key of every port.
	return operator + k.lines() + fmt.Sprintf("m_key_lease_period %d\nm_key_protection_level %d\nm_key_lookup FALSE\n", leaseSeconds, protectionLevel), nil
}

// Diagnostics returns the configuration by which programs of infiniband-diags use the key (their option --config).
func (k Keys) Diagnostics() string { return fmt.Sprintf("m_key=0x%016x\n", k.Management) }

// DiagnosticsName is the name of that file in a fabric's folder, and FileName of that of managed keys.
const (
	DiagnosticsName = "ibdiag.conf"
	FileName        = "keys"
)

// Path is the file of managed keys in a fabric's folder.
func Path(dir string) string { return filepath.Join(dir, FileName) }
