package vm

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/userdata"
)

// seedVolume is what cloud-init's NoCloud source looks for.
const seedVolume = "CIDATA"

// hostKey is where a member's SSH host key is among its files.
const hostKey = "/etc/ssh/ssh_host_ed25519_key"

// userDataFile is where its user data are among a member's files.
const userDataFile = "/etc/nearmetal/user-data"

// seedFiles are those of a member's generated files that a system of its own gets; its accounts, its name service and its sshd it has itself.
func seedFiles(user string) []string {
	return []string{
		"/etc/hosts", "/etc/nearmetal/hostfile", "/etc/nearmetal/nodelist", "/etc/nearmetal/ssh/id_ed25519", "/etc/nearmetal/ssh/id_ed25519.pub",
		"/etc/nearmetal/ssh/id_ed25519-cert.pub", "/etc/ssh/nearmetal_ca.pub", "/etc/ssh/ssh_known_hosts", path.Join("/etc/ssh/authorized_principals", user),
	}
}

// sshdDropIn lets the cluster's people in, by certificate.
const sshdDropIn = `TrustedUserCAKeys /etc/ssh/nearmetal_ca.pub
AuthorizedPrincipalsFile /etc/ssh/authorized_principals/%u
`

// seed is the disk that tells cloud-init in a guest what the guest is (cloud-init, "NoCloud"). JSON is YAML.
func seed(m driver.Member, setup guestlink.Setup) ([]byte, error) {
	meta, err := json.MarshalIndent(map[string]string{"instance-id": m.Assignment.ID, "local-hostname": m.Assignment.Member}, "", " ")
	if err != nil {
		return nil, err
	}
	network, err := json.MarshalIndent(seedNetwork(m, setup), "", " ")
	if err != nil {
		return nil, err
	}
	user, err := userData(m)
	if err != nil {
		return nil, err
	}
	return iso9660(seedVolume, []isoFile{
		{"meta-data", meta}, {"network-config", network}, {"user-data", user},
	})
}

// seedNetwork is a network configuration of version 2. The node answers DNS at the gateway's address of each network.
func seedNetwork(m driver.Member, setup guestlink.Setup) map[string]any {
	_, cluster := tenancy.Split(m.Assignment.Cluster)
	links := map[string]any{}
	for n, nic := range setup.Interfaces {
		addresses := []string{nic.Address.String()}
		if nic.Address6.IsValid() {
			addresses = append(addresses, nic.Address6.String())
		}
		link := map[string]any{
			"match": map[string]string{"macaddress": nic.MAC}, "set-name": nic.Name, "addresses": addresses, "mtu": nic.MTU,
			"dhcp4": false, "dhcp6": false, "accept-ra": false,
		}
		var routes []map[string]string
		for _, to := range nic.Routes {
			routes = append(routes, map[string]string{"to": to.String(), "via": nic.Gateway.String()})
		}
		if len(routes) > 0 {
			link["routes"] = routes
		}
		if n == 0 && !fabric.PortOf(&m.Assignment, n).OnFunction() { // no node answers on an adapter's own network
			link["nameservers"] = map[string]any{"addresses": []string{m.Networks[n].Gateway.String()}, "search": api.SearchDomains(cluster)}
		}
		links[nic.Name] = link
	}
	return map[string]any{"version": 2, "ethernets": links}
}

// userData is what cloud-init is given: the product's cloud-config, and what the member's user adds.
func userData(m driver.Member) ([]byte, error) {
	given := contentOf(m, userDataFile)
	if given == "" {
		return seedConfig(m).Alone()
	}
	return userdata.Merge(seedConfig(m), given)
}

func contentOf(m driver.Member, name string) string {
	i := slices.IndexFunc(m.Files, func(f driver.File) bool { return f.Path == name })
	if i < 0 {
		return ""
	}
	return string(m.Files[i].Content)
}

// seedConfig is a cloud-config: the user, the SSH host key, and files.
func seedConfig(m driver.Member) userdata.Config {
	files := []map[string]any{{"path": "/etc/ssh/sshd_config.d/nearmetal.conf", "content": sshdDropIn, "permissions": "0644"}}
	given := seedFiles(m.User.Name)
	for _, f := range m.Files {
		if !slices.Contains(given, f.Path) {
			continue
		}
		file := map[string]any{"path": f.Path, "content": string(f.Content), "permissions": fmt.Sprintf("%04o", f.Mode)}
		if f.OwnedByUser { // there is no such user before
			file["owner"], file["defer"] = m.User.Name+":"+m.User.Name, true
		}
		files = append(files, file)
	}
	config := userdata.Config{
		Defaults: map[string]any{"ssh_pwauth": false, "disable_root": true},
		Fixed:    map[string]any{"hostname": m.Assignment.Member, "preserve_hostname": false, "manage_etc_hosts": false, "ssh_deletekeys": true},
		Added: map[string]any{
			"users":       []map[string]any{{"name": m.User.Name, "uid": m.User.UID, "shell": "/bin/sh", "lock_passwd": true, "groups": "users"}},
			"write_files": files,
		},
	}
	if key := contentOf(m, hostKey); key != "" {
		config.Fixed["ssh_keys"] = map[string]string{
			"ed25519_private": key, "ed25519_public": strings.TrimSpace(contentOf(m, hostKey+".pub")),
			"ed25519_certificate": strings.TrimSpace(contentOf(m, hostKey+"-cert.pub")),
		}
	}
	return config
}
