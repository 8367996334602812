"""Machines of libvirt's test driver, in this process, behind real BMC software: sushy-tools (Redfish) and virtualbmc (IPMI).

usage: machines.py DIR REDFISH_HOST:PORT NAME=IPMI_HOST:PORT ... with the user "admin" and the password "secret". Prints "ready". Both
programs work on the same machines, so that what one of them is told can be read from the other.
"""
import sys
import threading
import traceback

import bcrypt
import libvirt
from sushy_tools.emulator import main as sushy
from virtualbmc import vbmc
from werkzeug.serving import make_server

URI = 'test:///default'
folder, redfish, machines = sys.argv[1], sys.argv[2].split(':'), [m.split('=') for m in sys.argv[3:]]

# The test driver forgets its machines with the last connection to it.
connection = libvirt.open(URI)
libvirt.registerErrorHandler(lambda *_: None, None)
for number, (name, _) in enumerate(machines):
    connection.defineXML(f"""<domain type='test'><name>{name}</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e{number:04x}</uuid>
        <memory>65536</memory><vcpu>1</vcpu><os><type arch='x86_64'>hvm</type><boot dev='hd'/></os>
        <devices><interface type='network'><source network='default'/></interface></devices></domain>""")
for domain in connection.listAllDomains():
    if domain.name() not in dict(machines):
        domain.destroy()
        domain.undefine()

for name, address in machines:
    host, port = address.split(':')
    bmc = vbmc.VirtualBMC('admin', 'secret', int(port), '::ffff:' + host, name, URI)


def listen():
    """Serve all BMCs: an exception over one packet would else end all of them."""
    while True:
        try:
            bmc.listen()
        except Exception:
            traceback.print_exc()


threading.Thread(target=listen, daemon=True).start()

with open(folder + '/htpasswd', 'w') as f:
    f.write('admin:' + bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode() + '\n')
sushy.app.configure(extra_config={
    'SUSHY_EMULATOR_LIBVIRT_URI': URI, 'SUSHY_EMULATOR_AUTH_FILE': folder + '/htpasswd', 'SUSHY_EMULATOR_STATE_DIR': folder,
    'SUSHY_EMULATOR_LISTEN_IP': redfish[0], 'SUSHY_EMULATOR_LISTEN_PORT': int(redfish[1])})
server = make_server(redfish[0], int(redfish[1]), sushy.app)
print('ready', flush=True)
server.serve_forever()
