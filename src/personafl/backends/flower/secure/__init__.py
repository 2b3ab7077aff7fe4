"""Secure aggregation: the server gets the sum of what sites send, and no single answer.

The protocol is SecAgg (Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017)
with Flower's primitives, over signed messages. For each sum every site is asked four times:

=========== ====================================================================================================
keys        it makes two key pairs, and tells the public keys, signed with its own key
shares      it gets everybody's keys, and gives shares of its mask's seed and of its first private key, one for each
            other site, encrypted for it
answer      it gets the shares that are for it, and gives its vector plus its own mask plus, for each other site that
            shared, a mask that this one subtracts
unmask      it gets the names of those whose vectors arrived, and gives its shares of the seeds of these, and of the
            private keys of the others: of each site one or the other, and once
=========== ====================================================================================================

A site that goes away after any of these leaves the others' sum as it is, as long as `threshold` stay.
"""
