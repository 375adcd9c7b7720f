//! Fuzzes the decoder of recovery's messages. It must not panic, and what it has decoded must be the same message after it is encoded and
//! decoded again, with values that can be read.
#![no_main]

use farm_txn::recovery::Body;
use farm_txn::recovery::message::Message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok((configuration, message)) = Message::decode(bytes) else {
        return;
    };
    let again = Message::decode(&message.encode(configuration));
    assert_eq!(again.as_ref(), Ok(&(configuration, message.clone())));
    if let Message::Fetched(_, region, body) | Message::Replicate(_, region, _, body) = &message {
        read(body);
        assert!(body.objects_in(*region).count() <= body.objects().count());
    }
});

fn read(body: &Body) {
    for object in body.objects() {
        let addresses: Vec<_> = object.addresses().take(8).collect();
        for address in addresses {
            assert!(body.object(address).is_some());
        }
    }
}
