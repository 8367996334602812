// Package infiniband reads what an operator says of an InfiniBand fabric: its subnet manager, and the files that are Nearmetal's.
//
// It is pure. Packages opensm and ufm below it act on the fabric. Start with Parse.
package infiniband

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
)

// Mode is who runs the subnet manager.
type Mode string

// The modes.
const (
	// Supervise: Nearmetal starts OpenSM on this machine and keeps it running.
	Supervise Mode = "supervise"
	// Adopt: the operator runs OpenSM, and Nearmetal writes its file of partitions and signals it.
	Adopt Mode = "adopt"
)

// The backends.
const (
	BackendOpenSM = "opensm"
	BackendUFM    = "ufm"
)

// Settings are one fabric's, as the operator writes them in YAML.
type Settings struct {
	// Backend is "opensm" or "ufm"; empty: the first. All but Directory, Keys and UFM are for OpenSM.
	Backend string `yaml:"backend"`
	Mode    Mode   `yaml:"mode"`
	// Directory is the folder of the executor's own files, absolute; empty: one in the state directory.
	Directory string `yaml:"directory"`
	// Partitions is the file that OpenSM reads, absolute. It may be empty with Supervise: then it is in Directory.
	Partitions string `yaml:"partitions"`
	// Operator is the operator's own file of partitions, which is only read; may be empty.
	Operator string `yaml:"operator"`
	// Options is a file of OpenSM's options, with Supervise; may be empty.
	Options string `yaml:"options"`
	// Adapter and Port are by which this machine reads the fabric, such as mlx5_0 and 1; empty: the first active port.
	Adapter string `yaml:"adapter"`
	Port    int    `yaml:"port"`
	// Manager is the OpenSM of this machine, with Supervise.
	Manager *Manager `yaml:"manager"`
	// Managers are all subnet managers that the fabric should have; others raise an alarm. Empty: that of Manager with Supervise, else any.
	Managers []Manager `yaml:"managers"`
	// Keys protect the fabric's subnet management: KeysManaged with Supervise, else an absolute path of a file with the operator's keys. With UFM it is
	// KeysDeclared. Empty: nothing does.
	Keys string `yaml:"keys"`
	// UFM is for the backend of that name.
	UFM *UFM `yaml:"ufm"`
}

// What Keys may be besides a path.
const (
	// KeysManaged: Nearmetal makes them, once, and gives them to OpenSM.
	KeysManaged = "managed"
	// KeysDeclared: the operator says that UFM protects the ports by an M_Key.
	KeysDeclared = "declared"
)

// UFM is how UFM Enterprise is reached.
type UFM struct {
	// URL is such as https://ufm.example.com.
	URL string `yaml:"url"`
	// CA is a PEM file with the authority of UFM's certificate, or with that certificate itself; empty: the system's authorities.
	CA string `yaml:"ca"`
	// ServerName is the name in the certificate; empty: the host of URL.
	ServerName string `yaml:"server_name"`
	// Credentials is a file of one line: USER:PASSWORD, or a token.
	Credentials string `yaml:"credentials"`
	// Keys is the range of partition keys that UFM leaves to this site, such as 0x100-0x1ff.
	Keys string `yaml:"keys"`
}

// Manager is a subnet manager.
type Manager struct {
	// GUID is that of its port, 16 hexadecimal digits.
	GUID string `yaml:"guid"`
	// Priority is 0 to 15; the highest becomes master.
	Priority int `yaml:"priority"`
}

// Parse reads settings. Dir is the folder for a fabric without a directory of its own.
func Parse(text []byte, dir string) (Settings, error) {
	var s Settings
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&s); err != nil {
		return Settings{}, errors.New(yaml.FormatError(err, false, true))
	}
	if s.Directory == "" {
		s.Directory = dir
	}
	if s.Partitions == "" && s.Mode == Supervise {
		s.Partitions = filepath.Join(s.Directory, "partitions.conf")
	}
	if s.Manager != nil && len(s.Managers) == 0 {
		s.Managers = []Manager{*s.Manager}
	}
	return s, s.check()
}

func (s Settings) check() error {
	switch {
	case s.Backend == BackendUFM:
		return s.checkUFM()
	case s.Backend != "" && s.Backend != BackendOpenSM:
		return fmt.Errorf("backend %q is unknown; write %s or %s", s.Backend, BackendOpenSM, BackendUFM)
	case s.UFM != nil:
		return fmt.Errorf("ufm is for backend %s; write backend: %s", BackendUFM, BackendUFM)
	case s.Mode != Supervise && s.Mode != Adopt:
		return fmt.Errorf("mode %q is neither %s (Nearmetal runs OpenSM) nor %s (you run it)", s.Mode, Supervise, Adopt)
	case s.Partitions == "":
		return errors.New("mode adopt needs partitions: the path of the file that your OpenSM reads, such as /etc/opensm/partitions.conf")
	case s.Mode == Supervise && s.Manager == nil:
		return errors.New("mode supervise needs manager: the guid of this machine's port (see ibstat -p) and a priority")
	case s.Mode == Adopt && (s.Manager != nil || s.Options != ""):
		return errors.New("manager and options are for mode supervise; in mode adopt your own start of OpenSM has them")
	case s.Keys == KeysManaged && s.Mode != Supervise:
		return errors.New("keys: managed is for mode supervise; in mode adopt, write the path of a file with the m_key that your OpenSM has")
	case s.Keys == KeysDeclared:
		return fmt.Errorf("keys: declared is for backend %s; write managed, or the path of a file with your m_key", BackendUFM)
	case s.Port < 0 || s.Port > 0 && s.Adapter == "":
		return errors.New("port is a port of adapter, from 1; name that as well")
	}
	for what, path := range map[string]string{"directory": s.Directory, "partitions": s.Partitions, "operator": s.Operator, "options": s.Options, "keys": strings.TrimPrefix(s.Keys, KeysManaged)} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q is not an absolute path", what, path)
		}
	}
	managers := s.Managers
	if s.Manager != nil {
		managers = append([]Manager{*s.Manager}, managers...)
	}
	for _, m := range managers {
		if _, err := partitions.GUID(m.GUID); err != nil {
			return fmt.Errorf("a manager's guid, %q: %w; quote it, so that it is no number", m.GUID, err)
		}
		if m.Priority < 0 || m.Priority > 15 {
			return fmt.Errorf("manager %s: priority %d is not 0 to 15", m.GUID, m.Priority)
		}
	}
	return nil
}

func (s Settings) checkUFM() error {
	if s.UFM == nil {
		return fmt.Errorf("backend %s needs ufm: its url, credentials and keys", BackendUFM)
	}
	if s.Mode != "" || s.Partitions != "" || s.Operator != "" || s.Options != "" || s.Adapter != "" || s.Port != 0 || s.Manager != nil || len(s.Managers) > 0 {
		return fmt.Errorf("mode, partitions, operator, options, adapter, port, manager and managers are for backend %s; UFM runs the subnet manager itself", BackendOpenSM)
	}
	if s.Keys != "" && s.Keys != KeysDeclared {
		return fmt.Errorf("keys: %q is for backend %s; write declared if UFM protects the ports by an M_Key of level 2, or omit it", s.Keys, BackendOpenSM)
	}
	if s.UFM.URL == "" || s.UFM.Credentials == "" {
		return errors.New("ufm needs url, such as https://ufm.example.com, and credentials: the path of a file with USER:PASSWORD or a token")
	}
	for what, path := range map[string]string{"directory": s.Directory, "ufm.ca": s.UFM.CA, "ufm.credentials": s.UFM.Credentials} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q is not an absolute path", what, path)
		}
	}
	if _, err := api.ParsePKeyPool(s.UFM.Keys); err != nil {
		return fmt.Errorf("ufm.keys: %w; UFM's other partitions stay as they are", err)
	}
	return nil
}
